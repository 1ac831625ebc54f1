/* The floor: what a program costs that only does what the kernel makes unavoidable. One thread, one epoll set,
   level-triggered; each readable connection is read once and answered with bytes made beforehand (by the second letter
   of the path: /0k /1k /10k /100k), or, on a relay's port, passed on to a backend over a
   connection of its own. No HTTP is understood, nothing is logged, nothing is checked. It bounds CPU time per request
   from below.

   floor PORT [RELAY_PORT BACKEND_PORT]... */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAXFD = 20000 };

/* What a descriptor is: the other side of a relay if positive, else one of these. -RELAY_LISTENER - N listens for backend N. */
enum { ANSWERED = -1, LISTENER = -2, CLOSED = -3, RELAY_LISTENER = 4 };

static int kind[MAXFD];
static char *answer[4];
static size_t answer_len[4];
static const size_t sizes[4] = {0, 1024, 10240, 102400};
/* What a full socket has not taken of an answer. */
static char *rest[MAXFD];
static size_t rest_len[MAXFD];
static int backend[8];
static int ep;

static void add(int fd, int what) {
    kind[fd] = what;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return a;
}

static int listen_on(int port) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = loopback(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) {
        perror("floor: bind");
        exit(1);
    }
    return fd;
}

static void drop(int fd) {
    int other = kind[fd];
    close(fd);
    kind[fd] = CLOSED;
    rest_len[fd] = 0;
    if (other > 0) {
        close(other);
        kind[other] = CLOSED;
        rest_len[other] = 0;
    }
}

static void want_out(int fd, int on) {
    struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.fd = fd};
    epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e);
}

/* Sends an answer, which stays where it is for as long as the program runs. */
static void put(int fd, char *b, size_t n) {
    ssize_t sent = send(fd, b, n, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        drop(fd);
        return;
    }
    if (sent < 0) sent = 0;
    if ((size_t)sent < n) {
        rest[fd] = b + sent;
        rest_len[fd] = n - sent;
        want_out(fd, 1);
    }
}

static void put_rest(int fd) {
    ssize_t sent = send(fd, rest[fd], rest_len[fd], MSG_NOSIGNAL);
    if (sent > 0) {
        rest[fd] += sent;
        rest_len[fd] -= sent;
    }
    if (!rest_len[fd]) want_out(fd, 0);
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (kind[listener] == LISTENER) {
            add(fd, ANSWERED);
            continue;
        }
        int other = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in a = loopback(backend[-kind[listener] - RELAY_LISTENER]);
        if (connect(other, (struct sockaddr *)&a, sizeof a)) {
            close(other);
            close(fd);
            continue;
        }
        fcntl(other, F_SETFL, O_NONBLOCK);
        setsockopt(other, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        add(fd, other);
        add(other, fd);
    }
}

/* Passes bytes on. To wait for a slow side is fine for a floor. */
static void relay(int fd, int other, const char *b, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(other, b + at, n - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) continue;
        if (sent <= 0) {
            drop(fd);
            return;
        }
        at += sent;
    }
}

static void serve(int fd) {
    static char buf[1 << 18];
    ssize_t n = recv(fd, buf, sizeof buf, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        drop(fd);
    } else if (kind[fd] > 0) {
        relay(fd, kind[fd], buf, n);
    } else {
        /* GET /0k, /1k, /10k or /100k */
        int which = buf[5] == '0' ? 0 : buf[6] == 'k' ? 1 : buf[7] == 'k' ? 2 : 3;
        put(fd, answer[which], answer_len[which]);
        if (memmem(buf, n, "Connection: close", 17)) drop(fd);
    }
}

static void prepare(void) {
    for (int i = 0; i < 4; i++) {
        answer[i] = malloc(sizes[i] + 400);
        int head = sprintf(answer[i],
                           "HTTP/1.1 200 OK\r\nServer: floor\r\nDate: Sat, 21 Nov 2026 06:05:59 GMT\r\n"
                           "Content-Type: text/html\r\nContent-Length: %zu\r\n"
                           "Last-Modified: Sat, 21 Nov 2026 06:05:59 GMT\r\nConnection: keep-alive\r\n"
                           "ETag: \"6740a1b7-400\"\r\nAccept-Ranges: bytes\r\n\r\n",
                           sizes[i]);
        memset(answer[i] + head, 'x', sizes[i]);
        answer_len[i] = head + sizes[i];
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "floor PORT [RELAY_PORT BACKEND_PORT]...\n");
        return 2;
    }
    struct rlimit limit = {MAXFD - 10, MAXFD - 10};
    setrlimit(RLIMIT_NOFILE, &limit);
    prepare();
    ep = epoll_create1(0);
    add(listen_on(atoi(argv[1])), LISTENER);
    for (int i = 0; i < 8 && 3 + 2 * i < argc; i++) {
        backend[i] = atoi(argv[3 + 2 * i]);
        add(listen_on(atoi(argv[2 + 2 * i])), -RELAY_LISTENER - i);
    }
    struct epoll_event events[512];
    for (;;) {
        int n = epoll_wait(ep, events, 512, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (kind[fd] == LISTENER || kind[fd] <= -RELAY_LISTENER)
                accept_all(fd);
            else if (kind[fd] == CLOSED)
                continue;
            else if (events[i].events & EPOLLOUT)
                put_rest(fd);
            else
                serve(fd);
        }
    }
}
