"""A Kubernetes control plane on one machine: etcd, kube-apiserver and kube-controller-manager from one program (`kit`), in a
network namespace of their own, and a small kubelet that runs pods as plain processes, each in a network namespace with an address.
There is no container runtime and there are no images: the name of an image chooses a program.

Needs root. Everything is below one folder and ends with `down`."""

import base64
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

POD_NET = "10.244.0."
NODE = POD_NET + "1"
API = "https://127.0.0.1:6443"
LOG_PORT = 10250
TOKEN = "test-token"


def sh(*command, check=True):
    return subprocess.run(command, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


class Api:
    """The API server as an administrator sees it, from inside of the namespace of the cluster."""

    def __init__(self, home):
        self.context = ssl.create_default_context(cafile=home + "/pki/ca.crt")

    def open(self, method, path, body=None, kind="application/json", timeout=30):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": "Bearer " + TOKEN, "Content-Type": kind}
        request = urllib.request.Request(API + path, method=method, data=data, headers=headers)
        return urllib.request.urlopen(request, context=self.context, timeout=timeout)

    def __call__(self, method, path, body=None, kind="application/json", timeout=30):
        with self.open(method, path, body, kind, timeout) as answer:
            return json.load(answer)

    def apply(self, path, body):
        """Creates or changes an object (server-side apply)."""
        return self("PATCH", path + "?fieldManager=test&force=true", body, "application/apply-patch+yaml")

    def delete(self, path):
        try:
            return self("DELETE", path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def ready(self):
        try:
            with self.open("GET", "/readyz", timeout=2) as answer:
                return answer.read() == b"ok"
        except OSError:
            return False


# The module whose version is that of a tool.
MODULES = {"kit": "k8s.io/kubernetes", "gateway": "sigs.k8s.io/gateway-api/conformance", "helm": "helm.sh/helm/v4"}


def tool(tools, name):
    """Returns the folder of a tool in the version that go.mod says; a cache may have those of other checkouts, too."""
    with open(f"{os.path.dirname(os.path.abspath(__file__))}/{name}/go.mod") as file:
        version = re.search(rf"^(?:require)?\s*{re.escape(MODULES[name])} (v\S+)", file.read(), re.MULTILINE)[1]
    return os.path.join(tools, f"{name}-{version}")


def gateway_api():
    """Returns the folder of the module with the definitions of the Gateway API. It may want a newer Go than the machine has."""
    folder = os.path.dirname(os.path.abspath(__file__)) + "/gateway"
    command = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api"]
    environment = {**os.environ, "GOTOOLCHAIN": "auto"}
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Cluster:
    """The control plane below the folder `home`. `tools` is what the script `build` prints."""

    def __init__(self, home, tools, name="fbk8s"):
        self.home, self.name, self.processes, self.ended = home, name, {}, False
        self.kit = tool(tools, "kit") + "/kit"
        self.echo = tool(tools, "gateway") + "/echo-basic"
        self.gateway_suite = tool(tools, "gateway") + "/conformance.test"
        os.makedirs(home, exist_ok=True)

    def network(self):
        """Makes the namespace of the control plane, with a bridge that pods are connected to."""
        self.remove_network()
        sh("ip", "netns", "add", self.name)
        ip = ("ip", "-n", self.name)
        sh(*ip, "link", "set", "lo", "up")
        sh(*ip, "link", "add", "br0", "type", "bridge")
        sh(*ip, "addr", "add", NODE + "/24", "dev", "br0")
        sh(*ip, "link", "set", "br0", "up")

    def remove_network(self):
        for line in sh("ip", "netns", "list").splitlines():
            name = line.split(" ")[0]
            if name == self.name or name.startswith(self.name + "-"):
                for pid in sh("ip", "netns", "pids", name, check=False).split():
                    if int(pid) != os.getpid():
                        try:
                            os.kill(int(pid), signal.SIGKILL)
                        except ProcessLookupError:
                            pass
                sh("ip", "netns", "del", name, check=False)

    def certificates(self):
        d = self.home + "/pki"
        os.makedirs(d, exist_ok=True)
        if os.path.exists(d + "/api.crt"):
            return
        ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        sh("openssl", "req", "-x509", *ec, "-days", "3650", "-keyout", d + "/ca.key", "-out", d + "/ca.crt", "-subj", "/CN=test-ca")
        sh("openssl", "req", *ec, "-keyout", d + "/api.key", "-out", d + "/api.csr", "-subj", "/CN=kube-apiserver")
        with open(d + "/ext", "w") as file:
            file.write("subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes.default.svc,DNS:localhost,DNS:secure.example\n")
        sh("openssl", "x509", "-req", "-in", d + "/api.csr", "-CA", d + "/ca.crt", "-CAkey", d + "/ca.key", "-CAcreateserial", "-days", "3650", "-extfile", d + "/ext", "-out", d + "/api.crt")
        sh("openssl", "genrsa", "-out", d + "/sa.key", "2048")
        sh("openssl", "rsa", "-in", d + "/sa.key", "-pubout", "-out", d + "/sa.pub")
        with open(d + "/tokens.csv", "w") as file:
            file.write(f"{TOKEN},admin,admin,system:masters\n")
        with open(d + "/ca.crt", "rb") as file:
            ca = base64.b64encode(file.read()).decode()
        self.kubeconfig("kubeconfig", ca, TOKEN)

    def kubeconfig(self, name, ca, token):
        path = f"{self.home}/{name}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": API, "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        with open(path, "w") as file:
            json.dump(config, file)
        return path

    def start(self, name, *arguments):
        """Starts a program of the kit inside of the namespace. This process is in it already."""
        log = open(f"{self.home}/{name}.log", "a")
        environment = {**os.environ, "KUBECONFIG": self.home + "/kubeconfig"}
        self.processes[name] = subprocess.Popen([self.kit, name, *arguments], stdout=log, stderr=log, cwd=self.home, start_new_session=True, env=environment)

    def start_api_server(self):
        d = self.home + "/pki"
        self.start(
            "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--advertise-address=" + NODE, "--secure-port=6443",
            f"--tls-cert-file={d}/api.crt", f"--tls-private-key-file={d}/api.key", f"--token-auth-file={d}/tokens.csv", "--authorization-mode=RBAC",
            f"--service-account-key-file={d}/sa.pub", f"--service-account-signing-key-file={d}/sa.key", "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16", f"--client-ca-file={d}/ca.crt", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--anonymous-auth=true", "--profiling=false", "--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
        )

    def up(self, controllers=True):
        """Starts everything. This process has to be in the namespace."""
        self.certificates()
        self.start(
            "etcd", "--data-dir", self.home + "/etcd", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
            "--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
            "--initial-cluster", "default=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level", "warn",
        )
        self.start_api_server()
        self.api = Api(self.home)
        self.wait_for_api_server()
        if controllers:
            d = self.home + "/pki"
            self.start(
                "kube-controller-manager", f"--kubeconfig={self.home}/kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1",
                f"--service-account-private-key-file={d}/sa.key", f"--root-ca-file={d}/ca.crt", "--kube-api-qps=500", "--kube-api-burst=1000",
                "--controllers=deployment-controller,replicaset-controller,endpointslice-controller,namespace-controller,serviceaccount-controller,"
                "root-ca-certificate-publisher-controller,garbage-collector-controller",
                "--use-service-account-credentials=false",
            )
        return self.api

    def wait_for_api_server(self, seconds=120):
        wait(self.api.ready, "the API server", seconds)

    def stop(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def kubectl(self, *arguments, content=None):
        environment = {**os.environ, "KUBECONFIG": self.home + "/kubeconfig"}
        done = subprocess.run([self.kit, "kubectl", *arguments], input=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stdout}")
        return done.stdout

    def down(self):
        self.ended = True
        for name in reversed(list(self.processes)):
            self.stop(name)
        shutil.rmtree(self.home + "/etcd", ignore_errors=True)


def wait(condition, what, seconds=30, pause=0.05):
    """Waits until a condition is true, and returns its value."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    raise TimeoutError(f"{what} did not come about within {seconds} s")


NAME_SERVER = r"""
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 53))
while True:
    question, client = server.recvfrom(1500)
    server.sendto(question[:2] + b"\x81\x80" + question[4:6] + bytes(6) + question[12:], client)
"""


class Kubelet(threading.Thread):
    """Runs the pods of the cluster as processes. An image with `echo-basic` in its name is the program of the conformance suite, one with
    `coredns` a name server that knows no name."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.api = cluster, Api(cluster.home)
        self.pods, self.last, self.lock = {}, 1, threading.Lock()

    def node(self):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux"}}}
        try:
            self.api("POST", "/api/v1/nodes", node)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
        much = {"cpu": "64", "memory": "256Gi", "pods": "500"}
        daemon = {"kubeletEndpoint": {"Port": LOG_PORT}}
        status = {"daemonEndpoints": daemon, "capacity": much, "allocatable": much, "addresses": [{"type": "InternalIP", "address": NODE}], "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
        self.api("PATCH", "/api/v1/nodes/n1/status", {"status": status}, "application/merge-patch+json")

    def serve_logs(self):
        """Answers the API server's requests for the output of pods, as a kubelet does."""
        home = self.cluster.home

        class Logs(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                # /containerLogs/NAMESPACE/POD/CONTAINER
                parts = self.path.split("?")[0].split("/")
                path = f"{home}/pods/{parts[3]}.log" if len(parts) > 3 and parts[1] == "containerLogs" else ""
                self.send_response(200 if os.path.exists(path) else 404)
                self.end_headers()
                if os.path.exists(path):
                    with open(path, "rb") as file:
                        shutil.copyfileobj(file, self.wfile)

            def log_message(self, *arguments):
                pass

        server = http.server.ThreadingHTTPServer((NODE, LOG_PORT), Logs)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(home + "/pki/api.crt", home + "/pki/api.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def run(self):
        self.serve_logs()
        self.node()
        while True:
            try:
                pods = self.api("GET", "/api/v1/pods")
                for pod in pods["items"]:
                    self.see("ADDED", pod)
                with self.api.open("GET", "/api/v1/pods?watch=1&resourceVersion=" + pods["metadata"]["resourceVersion"], timeout=3600) as events:
                    for line in events:
                        event = json.loads(line)
                        if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                            self.see(event["type"], event["object"])
            except Exception as error:
                if self.cluster.ended:
                    return
                print("kubelet:", repr(error), file=sys.stderr)
                time.sleep(0.5)

    def see(self, event, pod):
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if event == "DELETED" or meta.get("deletionTimestamp"):
            self.kill(meta["uid"])
            if event != "DELETED":
                try:
                    self.api("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
                except urllib.error.HTTPError:
                    pass
            return
        if not pod["spec"].get("nodeName"):
            try:
                self.api("POST", path + "/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": "n1"}})
            except urllib.error.HTTPError:
                pass
            return
        if meta["uid"] not in self.pods:
            self.pods[meta["uid"]] = None
            threading.Thread(target=self.start_pod, args=(pod, path), daemon=True).start()

    def start_pod(self, pod, path):
        meta = pod["metadata"]
        name = f"{self.cluster.name}-{meta['uid'][:8]}"
        with self.lock:
            self.last += 1
            address = POD_NET + str(self.last)
        try:
            link = "v" + meta["uid"][:8]
            sh("ip", "netns", "add", name)
            # This process is in the namespace of the cluster.
            sh("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            sh("ip", "link", "set", link, "master", "br0", "up")
            sh("ip", "-n", name, "link", "set", "lo", "up")
            sh("ip", "-n", name, "addr", "add", address + "/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh("ip", "-n", name, "route", "add", "default", "via", NODE)
            root = f"{self.cluster.home}/pods/{meta['uid']}"
            os.makedirs(root + "/tmp", exist_ok=True)
            processes = [self.container(pod, container, root, name, address) for container in pod["spec"]["containers"]]
            self.pods[meta["uid"]] = (processes, name, root)
            self.report(pod, path, address)
        except Exception as error:
            print("pod", meta["name"], repr(error), getattr(error, "output", ""), file=sys.stderr)

    def container(self, pod, container, root, name, address):
        meta = pod["metadata"]
        if "coredns" in container["image"]:
            return subprocess.Popen(["ip", "netns", "exec", name, sys.executable, "-c", NAME_SERVER], start_new_session=True)
        if "echo-basic" not in container["image"]:
            # The pod exists, and serves nothing.
            return subprocess.Popen(["sleep", "infinity"], start_new_session=True)
        program = self.cluster.echo
        if not os.path.exists(root + "/program"):
            try:
                os.link(program, root + "/program")
            except OSError:
                # Another file system.
                shutil.copy(program, root + "/program")
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            self.mount(meta["namespace"], volumes.get(mount["name"], {}), root + mount["mountPath"])
        fields = {"metadata.name": meta["name"], "metadata.namespace": meta["namespace"], "status.podIP": address}
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/"}
        for entry in container.get("env", []):
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environment[entry["name"]] = entry.get("value", fields.get(field, ""))
        log = open(f"{self.cluster.home}/pods/{meta['name']}.log", "w")
        return subprocess.Popen(["ip", "netns", "exec", name, "chroot", root, "/program"], env=environment, stdout=log, stderr=log, start_new_session=True)

    def mount(self, namespace, volume, folder):
        data, items = {}, None
        if "secret" in volume:
            secret = self.object(f"/api/v1/namespaces/{namespace}/secrets/{volume['secret']['secretName']}")
            data, items = {key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}, volume["secret"].get("items")
        elif "configMap" in volume:
            config_map = self.object(f"/api/v1/namespaces/{namespace}/configmaps/{volume['configMap']['name']}")
            data, items = {key: value.encode() for key, value in config_map.get("data", {}).items()}, volume["configMap"].get("items")
        os.makedirs(folder, exist_ok=True)
        for key, value in data.items():
            name = next((item["path"] for item in items if item["key"] == key), None) if items else key
            if name:
                with open(f"{folder}/{name}", "wb") as file:
                    file.write(value)

    def object(self, path):
        """Returns an object of a volume, which may be created after the pod."""

        def look():
            try:
                return self.api("GET", path)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise

        return wait(look, path, 60, 0.2)

    def report(self, pod, path, address):
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
        containers = [
            {"name": c["name"], "image": c["image"], "imageID": "", "ready": True, "started": True, "restartCount": 0, "state": {"running": {}}}
            for c in pod["spec"]["containers"]
        ]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": NODE, "conditions": conditions, "containerStatuses": containers}
        self.api("PATCH", path + "/status", {"status": status}, "application/strategic-merge-patch+json")

    def kill(self, uid):
        pod = self.pods.pop(uid, None)
        if not pod:
            return
        for process in pod[0]:
            try:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            except ProcessLookupError:
                pass
        sh("ip", "netns", "del", pod[1], check=False)
        shutil.rmtree(pod[2], ignore_errors=True)


def enter(name):
    """Continues this program inside of the namespace of a cluster."""
    if os.environ.get("FOREBAY_TEST_NAMESPACE") != name:
        os.environ["FOREBAY_TEST_NAMESPACE"] = name
        os.execvp("ip", ["ip", "netns", "exec", name, sys.executable, *sys.argv])
