/* The backend: answers as cheaply as it can, in one thread, over HTTP/1.1, FastCGI and uwsgi.

   origin HTTP_PORT FASTCGI_PORT UWSGI_PORT

   HTTP paths:  /b/N      N bytes with Content-Length, Last-Modified and ETag
                /c/N      N bytes in chunks of 4 KB
                /j        20 KB of JSON, different each time
                /r        10 MB, ranges understood
                /auth     200 without a body
                /hang     never an answer (a long poll)
                /sse      one event a second, with the time in nanoseconds; connections are spread over the second
                /ssei     one event, then silence
                /ws       101, then each message of 64 bytes (70 on the wire) is answered with one of 64 (66 on the wire)
                others    1 KB.   Bodies of requests are read and dropped first. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAXFD = 20000, BIG = 10 << 20, JSON_LINES = 8000, SLOTS = 100, TICK_NS = 1000000000 / SLOTS };

enum kind { LISTEN_HTTP, LISTEN_FASTCGI, LISTEN_UWSGI, HTTP, FASTCGI, UWSGI, WEBSOCKET, EVENTS };

struct connection {
    enum kind kind;
    int fd, close_after;
    /* What has been read and not understood yet. */
    char *in;
    size_t in_len, in_capacity;
    /* Bytes of a request's body that are still to come. */
    size_t drop;
    /* The request. */
    char path[256];
    long from, to;
    int has_range, want_close;
    int fastcgi_keep, fastcgi_id;
    /* The answer: its head, or all of it if it is small, and a part of `text` behind it. */
    char *out;
    size_t out_len, out_at, out_capacity;
    const char *body;
    size_t body_len;
    size_t message;
    int slot;
};

/* Descriptors of event streams that get their event in the same hundredth of a second. */
struct slot {
    struct connection **streams;
    size_t count, capacity;
};

static int epoll;
static char *text, *json;
static size_t json_at[JSON_LINES + 1];
static struct slot slots[SLOTS];
static size_t streams;

static const char *const WORDS[] = {"the",   "of",     "and",    "server", "request", "header", "value",  "cache",
                                    "proxy", "worker", "kernel", "socket", "event",   "loop",   "buffer", "stream"};
static const char VALIDATORS[] = "Server: origin\r\nLast-Modified: Sat, 21 Nov 2026 06:05:59 GMT\r\nETag: \"6740a1b7-400\"\r\n";

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static const char *word(void) {
    return WORDS[rand() & 15];
}

static void make_content(void) {
    size_t n = 0;
    srand(7);
    text = malloc(BIG + 64);
    while (n < BIG) n += sprintf(text + n, "%s ", word());
    json = malloc(JSON_LINES * 160);
    n = 0;
    for (size_t i = 0; i < JSON_LINES; i++) {
        json_at[i] = n;
        n += sprintf(json + n, "{\"id\":%d,\"name\":\"%s-%s\",", rand() % 1000000, word(), word());
        n += sprintf(json + n, "\"price\":%d.%02d,\"uid\":\"%08x%08x\",", rand() % 1000, rand() % 100, rand(), rand());
        n += sprintf(json + n, "\"active\":%s,\"tag\":\"%s\"},\n", rand() & 1 ? "true" : "false", word());
    }
    json_at[JSON_LINES] = n;
}

static struct connection *add(int fd, enum kind kind, unsigned events) {
    struct connection *c = calloc(1, sizeof *c);
    c->fd = fd;
    c->kind = kind;
    struct epoll_event e = {.events = events, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
    return c;
}

static void listen_on(int port, enum kind kind) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) {
        perror("origin: bind");
        exit(1);
    }
    add(fd, kind, EPOLLIN);
}

static void accept_all(struct connection *listener) {
    int fd, one = 1;
    while ((fd = accept4(listener->fd, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        add(fd, listener->kind - LISTEN_HTTP + HTTP, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    }
}

/* Ends a connection. Returns 0, which says everywhere below that a connection is gone. */
static int shut(struct connection *c) {
    if (c->kind == EVENTS) {
        struct slot *s = &slots[c->slot];
        for (size_t i = 0; i < s->count; i++) {
            if (s->streams[i] != c) continue;
            s->streams[i] = s->streams[--s->count];
            streams--;
            break;
        }
    }
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
    return 0;
}

static void put(struct connection *c, const char *bytes, size_t n) {
    if (c->out_len + n > c->out_capacity) {
        c->out_capacity = (c->out_len + n) * 2;
        c->out = realloc(c->out, c->out_capacity);
    }
    memcpy(c->out + c->out_len, bytes, n);
    c->out_len += n;
}

static void take(struct connection *c, size_t n) {
    memmove(c->in, c->in + n, c->in_len - n);
    c->in_len -= n;
}

static int flush(struct connection *c) {
    while (c->out_at < c->out_len || c->body_len) {
        size_t head = c->out_len - c->out_at;
        struct iovec parts[2] = {{c->out + c->out_at, head}, {(void *)c->body, c->body_len}};
        struct msghdr m = {.msg_iov = parts, .msg_iovlen = c->body_len ? 2 : 1};
        ssize_t sent = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) return 1;
        if (sent < 0) return shut(c);
        if ((size_t)sent < head) {
            c->out_at += sent;
            continue;
        }
        c->out_at = c->out_len;
        c->body += sent - head;
        c->body_len -= sent - head;
    }
    c->out_at = c->out_len = 0;
    return c->close_after ? shut(c) : 1;
}

static void start_events(struct connection *c, int more) {
    static int next;
    char head[256];
    int n = sprintf(head,
                    "HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                    "Connection: close\r\n\r\ndata: %lld\n\n",
                    now_ns());
    put(c, head, n);
    c->close_after = 0;
    if (!more) return;
    c->kind = EVENTS;
    c->slot = next++ % SLOTS;
    struct slot *s = &slots[c->slot];
    if (s->count == s->capacity) s->streams = realloc(s->streams, (s->capacity = s->capacity * 2 + 8) * sizeof *s->streams);
    s->streams[s->count++] = c;
    streams++;
}

static void start_websocket(struct connection *c) {
    static const char head[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                               "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    put(c, head, sizeof head - 1);
    c->kind = WEBSOCKET;
    c->close_after = 0;
}

static void put_range(struct connection *c, const char *connection) {
    char head[512];
    long from = 0, to = BIG - 1;
    int n;
    if (c->has_range) {
        from = c->from;
        to = c->to < BIG - 1 ? c->to : BIG - 1;
        n = sprintf(
            head,
            "HTTP/1.1 206 Partial Content\r\n%sContent-Type: application/octet-stream\r\nContent-Range: bytes %ld-%ld/%d\r\n",
            VALIDATORS, from, to, BIG);
    } else {
        n = sprintf(head, "HTTP/1.1 200 OK\r\n%sContent-Type: application/octet-stream\r\nAccept-Ranges: bytes\r\n", VALIDATORS);
    }
    n += sprintf(head + n, "Content-Length: %ld\r\n%s\r\n", to - from + 1, connection);
    put(c, head, n);
    c->body = text + from;
    c->body_len = to - from + 1;
}

/* 200 of the lines, and a number that makes each answer another. */
static void put_json(struct connection *c, const char *connection) {
    static unsigned long serial;
    static unsigned seed = 1;
    seed = seed * 1103515245 + 12345;
    size_t line = (seed >> 8) % (JSON_LINES / 2), len = json_at[line + 200] - json_at[line] - 2;
    char first[64], head[256];
    int first_len = sprintf(first, "{\"serial\":%lu,\"items\":[", ++serial);
    int n = sprintf(head, "HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
                    first_len + len + 2, connection);
    put(c, head, n);
    put(c, first, first_len);
    put(c, json + json_at[line], len);
    put(c, "]}", 2);
}

static void put_chunks(struct connection *c, size_t left, const char *connection) {
    char head[256];
    int n = sprintf(head, "HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n%s\r\n",
                    connection);
    put(c, head, n);
    for (const char *from = text; left;) {
        size_t len = left < 4096 ? left : 4096;
        put(c, head, sprintf(head, "%zx\r\n", len));
        put(c, from, len);
        put(c, "\r\n", 2);
        left -= len;
        from += len;
    }
    put(c, "0\r\n\r\n", 5);
}

static void put_bytes(struct connection *c, size_t len, const char *connection) {
    char head[512];
    if (len > BIG) len = BIG;
    int n = sprintf(head, "HTTP/1.1 200 OK\r\n%sContent-Type: text/html\r\nContent-Length: %zu\r\n%s\r\n", VALIDATORS, len,
                    connection);
    put(c, head, n);
    c->body = text;
    c->body_len = len;
}

static int starts(const char *path, const char *prefix) {
    return !strncmp(path, prefix, strlen(prefix));
}

static int answer(struct connection *c) {
    const char *path = c->path, *connection = c->want_close ? "Connection: close\r\n" : "";
    c->close_after = c->want_close;
    if (starts(path, "/hang")) return 1;
    if (starts(path, "/sse")) {
        start_events(c, path[4] != 'i');
    } else if (starts(path, "/ws")) {
        start_websocket(c);
    } else if (starts(path, "/auth")) {
        char head[256];
        put(c, head,
            sprintf(head, "HTTP/1.1 200 OK\r\nServer: origin\r\nX-User: alice\r\nContent-Length: 0\r\n%s\r\n", connection));
    } else if (starts(path, "/r")) {
        put_range(c, connection);
    } else if (starts(path, "/j")) {
        put_json(c, connection);
    } else if (starts(path, "/c/")) {
        put_chunks(c, atol(path + 3), connection);
    } else {
        put_bytes(c, starts(path, "/b/") ? atol(path + 3) : 1024, connection);
    }
    return flush(c);
}

static int has_word(const char *from, const char *end, const char *word) {
    size_t n = strlen(word);
    for (; from + n <= end; from++)
        if (!strncasecmp(from, word, n)) return 1;
    return 0;
}

/* Understands a head, and says how long the body is. -1: it is none. */
static long read_head(struct connection *c, const char *end) {
    const char *path = memchr(c->in, ' ', end - c->in);
    const char *version = path ? memchr(path + 1, ' ', end - path - 1) : NULL;
    if (!version) return -1;
    size_t len = version - path - 1;
    if (len >= sizeof c->path) len = sizeof c->path - 1;
    memcpy(c->path, path + 1, len);
    c->path[len] = 0;
    c->want_close = starts(version + 1, "HTTP/1.0");
    c->has_range = 0;
    long body = 0;
    for (const char *line = memchr(c->in, '\n', end - c->in); line && line < end; line = memchr(line, '\n', end - line)) {
        line++;
        const char *eol = memchr(line, '\r', end + 1 - line);
        if (!eol) break;
        if (!strncasecmp(line, "content-length:", 15)) {
            body = atol(line + 15);
        } else if (!strncasecmp(line, "connection:", 11)) {
            c->want_close |= has_word(line + 11, eol, "close");
        } else if (!strncasecmp(line, "range: bytes=", 13)) {
            c->has_range = 1;
            if (sscanf(line + 13, "%ld-%ld", &c->from, &c->to) < 2) c->to = BIG - 1;
        }
    }
    return body;
}

static int serve_http(struct connection *c) {
    while (c->kind == HTTP) {
        if (c->drop) {
            size_t n = c->in_len < c->drop ? c->in_len : c->drop;
            take(c, n);
            c->drop -= n;
            if (c->drop) return 1;
            if (!answer(c)) return 0;
            continue;
        }
        const char *end = c->in_len ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
        if (!end) return 1;
        long body = read_head(c, end);
        if (body < 0) return shut(c);
        take(c, end + 4 - c->in);
        c->drop = body;
        if (!body && !answer(c)) return 0;
    }
    return 1;
}

static int serve_fastcgi(struct connection *c) {
    static const char head[] = "Content-Type: text/html; charset=UTF-8\r\nX-Powered-By: origin\r\n\r\n";
    for (;;) {
        if (c->in_len < 8) return 1;
        unsigned char *record = (unsigned char *)c->in;
        size_t content = record[4] << 8 | record[5], all = 8 + content + record[6];
        if (c->in_len < all) return 1;
        int type = record[1];
        c->fastcgi_id = record[2] << 8 | record[3];
        if (type == 1) c->fastcgi_keep = record[10] & 1;
        take(c, all);
        /* The last record of the body is empty. */
        if (type != 5 || content) continue;
        size_t n = sizeof head - 1, out = n + 1024;
        char high = c->fastcgi_id >> 8, low = c->fastcgi_id;
        char start[8] = {1, 6, high, low, out >> 8, out, 0, 0};
        char end[24] = {1, 6, high, low, 0, 0, 0, 0, 1, 3, high, low, 0, 8};
        put(c, start, sizeof start);
        put(c, head, n);
        put(c, text, 1024);
        put(c, end, sizeof end);
        c->close_after = !c->fastcgi_keep;
        if (!flush(c)) return 0;
    }
}

static int serve_uwsgi(struct connection *c) {
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 1024\r\n\r\n";
    unsigned char *record = (unsigned char *)c->in;
    if (c->in_len < 4 || c->in_len < 4u + (record[1] | record[2] << 8)) return 1;
    put(c, head, sizeof head - 1);
    put(c, text, 1024);
    c->close_after = 1;
    return flush(c);
}

static int serve_websocket(struct connection *c) {
    char frame[66] = {(char)0x82, 64};
    memset(frame + 2, 'e', 64);
    c->message += c->in_len;
    c->in_len = 0;
    for (; c->message >= 70; c->message -= 70) put(c, frame, sizeof frame);
    return flush(c);
}

static int understand(struct connection *c) {
    if (c->kind == HTTP && !serve_http(c)) return 0;
    switch (c->kind) {
    case FASTCGI: return serve_fastcgi(c);
    case UWSGI: return serve_uwsgi(c);
    case WEBSOCKET: return serve_websocket(c);
    case EVENTS: c->in_len = 0; return 1;
    default: return 1;
    }
}

static void read_all(struct connection *c, unsigned events) {
    static char buf[1 << 18];
    for (;;) {
        ssize_t got = recv(c->fd, buf, sizeof buf, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            shut(c);
            return;
        }
        size_t n = got, at = 0;
        /* A body goes nowhere, but for its last byte. */
        if (c->kind == HTTP && c->drop && !c->in_len) {
            at = n < c->drop - 1 ? n : c->drop - 1;
            c->drop -= at;
            n -= at;
        }
        if (c->in_len + n > c->in_capacity) c->in = realloc(c->in, c->in_capacity = c->in_len + n + 2048);
        if (n) {
            memcpy(c->in + c->in_len, buf + at, n);
            c->in_len += n;
            if (!understand(c)) return;
        }
        if ((size_t)got < sizeof buf && !(events & EPOLLRDHUP)) return;
    }
}

static void send_events(struct slot *s) {
    char event[64];
    int n = sprintf(event, "data: %lld\n\n", now_ns());
    for (size_t i = 0; i < s->count;) {
        struct connection *c = s->streams[i];
        put(c, event, n);
        /* One that is gone has been replaced by the last one. */
        if (flush(c)) i++;
    }
}

static void serve(struct connection *c, unsigned events) {
    if (c->kind <= LISTEN_UWSGI) {
        accept_all(c);
        return;
    }
    if (events & EPOLLOUT && (c->out_at < c->out_len || c->body_len) && !flush(c)) return;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_all(c, events);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "origin HTTP_PORT FASTCGI_PORT UWSGI_PORT\n");
        return 2;
    }
    struct rlimit limit = {MAXFD - 1, MAXFD - 1};
    setrlimit(RLIMIT_NOFILE, &limit);
    make_content();
    epoll = epoll_create1(0);
    for (int i = 0; i < 3; i++) listen_on(atoi(argv[1 + i]), LISTEN_HTTP + i);
    struct epoll_event events[512];
    long long due = now_ns();
    for (;;) {
        int n = epoll_wait(epoll, events, 512, streams ? 3 : -1);
        for (int i = 0; i < n; i++) serve(events[i].data.ptr, events[i].events);
        long long now = now_ns();
        if (!streams) due = now;
        for (; due <= now && streams; due += TICK_NS) send_events(&slots[due / TICK_NS % SLOTS]);
    }
}
