import socket, ssl, sys
port, body = int(sys.argv[1]), open(sys.argv[2], 'rb').read()
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if len(sys.argv) > 3: context.maximum_version = ssl.TLSVersion.TLSv1_2
def connect():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    s.settimeout(20)
    s.connect(('127.0.0.1', port))
    return context.wrap_socket(s)
clients = [connect() for _ in range(16)]
def path(c, n): return ('/short' if (c + n) % 3 == 0 else '/long') + f'?{c}-{n}'
for n in range(20):
    for c, s in enumerate(clients):
        last = 'Connection: close\r\n' if n == 19 else ''
        s.sendall(f'GET {path(c, n)} HTTP/1.1\r\nHost: h\r\n{last}\r\n'.encode())
for c, s in enumerate(clients):
    got = b''.join(iter(lambda: s.recv(65536), b''))
    answers = got.split(b'HTTP/1.1 200 OK\r\n')[1:]
    assert len(answers) == 20, (c, len(answers))
    for n, answer in enumerate(answers):
        head, _, content = answer.partition(b'\r\n\r\n')
        assert f'X-Uri: {path(c, n)}'.encode() in head.split(b'\r\n'), (c, n, head)
        assert content == (b'short' if (c + n) % 3 == 0 else body), (c, n, len(content))
