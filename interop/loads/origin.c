/* The backend of perf2.py: answers as cheaply as it can, in one thread, over HTTP/1.1, FastCGI and uwsgi.
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
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAXFD = 20000, BIG = 10 << 20 };

enum kind { FREE, LISTEN_HTTP, LISTEN_FCGI, LISTEN_UWSGI, HTTP, FCGI, UWSGI, WS, SSE };

struct conn {
    int kind, fd, close_after, fcgi_keep, fcgi_id, sse_slot;
    char *in;
    size_t in_len, in_cap; /* what has been read and not understood yet */
    size_t drop;           /* bytes of a request's body still to come */
    char path[256];
    long from, to;
    int has_range, want_close;
    char *out;
    size_t out_len, out_off, out_cap; /* head, or everything if it is small */
    const char *body;
    size_t body_len; /* a part of `text` behind it */
    size_t ws_bytes;
};
static struct conn *conns[MAXFD];
static int ep;
static char *text, *json;
static size_t json_lines, *json_at;
static int *sse[100], sse_n[100], sse_cap[100], sse_next;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void listen_on(int port, int kind) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) {
        perror("origin: bind");
        exit(1);
    }
    struct conn *c = calloc(1, sizeof *c);
    c->kind = kind;
    c->fd = fd;
    conns[fd] = c;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
}

static void shut(struct conn *c) {
    if (c->kind == SSE) {
        int s = c->sse_slot;
        for (int i = 0; i < sse_n[s]; i++)
            if (sse[s][i] == c->fd) {
                sse[s][i] = sse[s][--sse_n[s]];
                break;
            }
    }
    close(c->fd);
    conns[c->fd] = NULL;
    free(c->in);
    free(c->out);
    c->kind = FREE;
    free(c);
}

static void room(struct conn *c, size_t n) {
    if (c->out_len + n > c->out_cap) {
        c->out_cap = (c->out_len + n) * 2;
        c->out = realloc(c->out, c->out_cap);
    }
}

static void put(struct conn *c, const char *p, size_t n) {
    room(c, n);
    memcpy(c->out + c->out_len, p, n);
    c->out_len += n;
}

/* 0: the connection is gone */
static int flush(struct conn *c) {
    while (c->out_off < c->out_len || c->body_len) {
        struct iovec v[2] = {{c->out + c->out_off, c->out_len - c->out_off}, {(void *)c->body, c->body_len}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = c->body_len ? 2 : 1};
        ssize_t w = sendmsg(c->fd, &m, MSG_NOSIGNAL);
        if (w < 0) {
            if (errno == EAGAIN) return 1;
            shut(c);
            return 0;
        }
        size_t h = c->out_len - c->out_off;
        if ((size_t)w < h) {
            c->out_off += w;
            continue;
        }
        c->out_off = c->out_len;
        c->body += w - h;
        c->body_len -= w - h;
    }
    c->out_off = c->out_len = 0;
    if (c->close_after) {
        shut(c);
        return 0;
    }
    return 1;
}

static int has_word(const char *p, const char *e, const char *w) {
    size_t n = strlen(w);
    for (; p + n <= e; p++)
        if (!strncasecmp(p, w, n)) return 1;
    return 0;
}

static int answer_http(struct conn *c) {
    char h[512];
    int n;
    const char *p = c->path;
    const char *fix = "Server: origin\r\nLast-Modified: Sat, 21 Nov 2026 06:05:59 GMT\r\nETag: \"6740a1b7-400\"\r\n";
    const char *con = c->want_close ? "Connection: close\r\n" : "";
    c->close_after = c->want_close;
    if (!strncmp(p, "/hang", 5)) return 1;
    if (!strncmp(p, "/sse", 4)) {
        n = sprintf(h,
                    "HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: text/event-stream\r\nCache-Control: "
                    "no-cache\r\n%s\r\ndata: %lld\n\n",
                    "Connection: close\r\n", now_ns());
        put(c, h, n);
        c->close_after = 0;
        if (p[4] != 'i') {
            int s = sse_next++ % 100;
            c->kind = SSE;
            c->sse_slot = s;
            if (sse_n[s] == sse_cap[s]) {
                sse_cap[s] = sse_cap[s] * 2 + 8;
                sse[s] = realloc(sse[s], sse_cap[s] * sizeof(int));
            }
            sse[s][sse_n[s]++] = c->fd;
        }
        return flush(c);
    }
    if (!strncmp(p, "/ws", 3)) {
        n = sprintf(h, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
                       "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
        put(c, h, n);
        c->kind = WS;
        c->close_after = 0;
        return flush(c);
    }
    if (!strncmp(p, "/auth", 5)) {
        n = sprintf(h, "HTTP/1.1 200 OK\r\nServer: origin\r\nX-User: alice\r\nContent-Length: 0\r\n%s\r\n", con);
        put(c, h, n);
        return flush(c);
    }
    if (!strncmp(p, "/r", 2)) {
        long a = 0, b = BIG - 1;
        if (c->has_range) {
            a = c->from;
            b = c->to < BIG - 1 ? c->to : BIG - 1;
        }
        if (c->has_range)
            n = sprintf(h,
                        "HTTP/1.1 206 Partial Content\r\n%sContent-Type: application/octet-stream\r\nContent-Range: bytes "
                        "%ld-%ld/%d\r\nContent-Length: %ld\r\n%s\r\n",
                        fix, a, b, BIG, b - a + 1, con);
        else
            n = sprintf(h,
                        "HTTP/1.1 200 OK\r\n%sContent-Type: application/octet-stream\r\nAccept-Ranges: bytes\r\nContent-Length: "
                        "%d\r\n%s\r\n",
                        fix, BIG, con);
        put(c, h, n);
        c->body = text + a;
        c->body_len = b - a + 1;
        return flush(c);
    }
    if (!strncmp(p, "/j", 2)) {
        static unsigned long turn;
        static unsigned seed = 1;
        seed = seed * 1103515245 + 12345;
        size_t i = (seed >> 8) % (json_lines / 2), len = json_at[i + 200] - json_at[i] - 2;
        char first[64];
        int f = sprintf(first, "{\"serial\":%lu,\"items\":[", ++turn);
        n = sprintf(h, "HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n",
                    f + len + 2, con);
        put(c, h, n);
        put(c, first, f);
        put(c, json + json_at[i], len);
        put(c, "]}", 2);
        return flush(c);
    }
    if (!strncmp(p, "/c/", 3)) {
        size_t left = atol(p + 3);
        char s[16];
        n = sprintf(h, "HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n%s\r\n",
                    con);
        put(c, h, n);
        for (const char *t = text; left;) {
            size_t k = left < 4096 ? left : 4096;
            put(c, s, sprintf(s, "%zx\r\n", k));
            put(c, t, k);
            put(c, "\r\n", 2);
            left -= k;
            t += k;
        }
        put(c, "0\r\n\r\n", 5);
        return flush(c);
    }
    size_t len = !strncmp(p, "/b/", 3) ? (size_t)atol(p + 3) : 1024;
    if (len > BIG) len = BIG;
    n = sprintf(h, "HTTP/1.1 200 OK\r\n%sContent-Type: text/html\r\nContent-Length: %zu\r\n%s\r\n", fix, len, con);
    put(c, h, n);
    c->body = text;
    c->body_len = len;
    return flush(c);
}

/* Takes apart what has been read; 0: the connection is gone */
static int understand(struct conn *c) {
    for (;;) {
        if (c->kind == HTTP) {
            if (c->drop) {
                size_t k = c->in_len < c->drop ? c->in_len : c->drop;
                memmove(c->in, c->in + k, c->in_len - k);
                c->in_len -= k;
                c->drop -= k;
                if (c->drop) return 1;
                if (!answer_http(c)) return 0;
                continue;
            }
            char *e = c->in_len ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
            if (!e) return 1;
            char *sp = memchr(c->in, ' ', e - c->in), *sp2 = sp ? memchr(sp + 1, ' ', e - sp - 1) : NULL;
            if (!sp2) {
                shut(c);
                return 0;
            }
            size_t pl = sp2 - sp - 1;
            if (pl > 255) pl = 255;
            memcpy(c->path, sp + 1, pl);
            c->path[pl] = 0;
            c->want_close = !strncmp(sp2 + 1, "HTTP/1.0", 8);
            c->has_range = 0;
            size_t body = 0;
            for (char *l = memchr(c->in, '\n', e - c->in); l && l < e; l = memchr(l + 1, '\n', e - l - 1)) {
                char *q = l + 1, *eol = memchr(q, '\r', e + 1 - q);
                if (!eol) break;
                if (!strncasecmp(q, "content-length:", 15))
                    body = strtoul(q + 15, NULL, 10);
                else if (!strncasecmp(q, "connection:", 11) && has_word(q + 11, eol, "close"))
                    c->want_close = 1;
                else if (!strncasecmp(q, "range: bytes=", 13)) {
                    c->has_range = 1;
                    if (sscanf(q + 13, "%ld-%ld", &c->from, &c->to) < 2) c->to = BIG - 1;
                }
            }
            size_t used = e + 4 - c->in;
            memmove(c->in, c->in + used, c->in_len - used);
            c->in_len -= used;
            if (body) {
                c->drop = body;
                continue;
            }
            if (!answer_http(c)) return 0;
            if (c->kind == HTTP) continue;
            return 1;
        }
        if (c->kind == FCGI) {
            if (c->in_len < 8) return 1;
            unsigned char *h = (unsigned char *)c->in;
            size_t cl = h[4] << 8 | h[5], all = 8 + cl + h[6];
            if (c->in_len < all) return 1;
            int type = h[1];
            c->fcgi_id = h[2] << 8 | h[3];
            if (type == 1) c->fcgi_keep = h[10] & 1;
            memmove(c->in, c->in + all, c->in_len - all);
            c->in_len -= all;
            if (type == 5 && cl == 0) {
                const char *head = "Content-Type: text/html; charset=UTF-8\r\nX-Powered-By: origin\r\n\r\n";
                size_t n = strlen(head), t = n + 1024;
                unsigned char r[8] = {1, 6, c->fcgi_id >> 8, c->fcgi_id, t >> 8, t, 0, 0},
                              z[24] = {1, 6, c->fcgi_id >> 8, c->fcgi_id, 0, 0, 0, 0, 1, 3, c->fcgi_id >> 8, c->fcgi_id, 0, 8};
                put(c, (char *)r, 8);
                put(c, head, n);
                put(c, text, 1024);
                put(c, (char *)z, 24);
                c->close_after = !c->fcgi_keep;
                if (!flush(c)) return 0;
            }
            continue;
        }
        if (c->kind == UWSGI) {
            if (c->in_len < 4) return 1;
            unsigned char *h = (unsigned char *)c->in;
            size_t all = 4 + (h[1] | h[2] << 8);
            if (c->in_len < all) return 1;
            const char *head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 1024\r\n\r\n";
            put(c, head, strlen(head));
            put(c, text, 1024);
            c->close_after = 1;
            return flush(c);
        }
        if (c->kind == WS) {
            c->ws_bytes += c->in_len;
            c->in_len = 0;
            while (c->ws_bytes >= 70) {
                char f[66] = {(char)0x82, 64};
                memset(f + 2, 'e', 64);
                put(c, f, 66);
                c->ws_bytes -= 70;
            }
            return flush(c);
        }
        c->in_len = 0;
        return 1;
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "origin HTTP_PORT FASTCGI_PORT UWSGI_PORT\n");
        return 2;
    }
    struct rlimit rl = {MAXFD - 1, MAXFD - 1};
    setrlimit(RLIMIT_NOFILE, &rl);
    static const char *words[] = {"the",   "of",     "and",    "server", "request", "header", "value",  "cache",
                                  "proxy", "worker", "kernel", "socket", "event",   "loop",   "buffer", "stream"};
    text = malloc(BIG + 64);
    size_t n = 0;
    srand(7);
    while (n < BIG) n += sprintf(text + n, "%s ", words[rand() & 15]);
    json_lines = 8000;
    json_at = malloc((json_lines + 1) * sizeof *json_at);
    json = malloc(json_lines * 160);
    n = 0;
    for (size_t i = 0; i < json_lines; i++) {
        json_at[i] = n;
        n += sprintf(json + n,
                     "{\"id\":%d,\"name\":\"%s-%s\",\"price\":%d.%02d,\"uid\":\"%08x%08x\",\"active\":%s,\"tag\":\"%s\"},\n",
                     rand() % 1000000, words[rand() & 15], words[rand() & 15], rand() % 1000, rand() % 100, rand(), rand(),
                     rand() & 1 ? "true" : "false", words[rand() & 15]);
    }
    json_at[json_lines] = n;
    ep = epoll_create1(0);
    listen_on(atoi(argv[1]), LISTEN_HTTP);
    listen_on(atoi(argv[2]), LISTEN_FCGI);
    listen_on(atoi(argv[3]), LISTEN_UWSGI);
    static char buf[1 << 18];
    struct epoll_event ev[512];
    long long tick = now_ns();
    for (;;) {
        int any = 0;
        for (int i = 0; i < 100; i++) any += sse_n[i];
        int k = epoll_wait(ep, ev, 512, any ? 3 : -1);
        for (int i = 0; i < k; i++) {
            struct conn *c = ev[i].data.ptr;
            if (c->kind >= LISTEN_HTTP && c->kind <= LISTEN_UWSGI) {
                int fd, one = 1;
                while ((fd = accept4(c->fd, 0, 0, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= MAXFD) {
                        close(fd);
                        continue;
                    }
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    struct conn *n = calloc(1, sizeof *n);
                    n->fd = fd;
                    n->kind = c->kind - LISTEN_HTTP + HTTP;
                    conns[fd] = n;
                    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = n};
                    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            if (ev[i].events & EPOLLOUT && (c->out_off < c->out_len || c->body_len))
                if (!flush(c)) continue;
            if (!(ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            for (;;) {
                ssize_t r = recv(c->fd, buf, sizeof buf, 0);
                if (r < 0 && errno == EAGAIN) break;
                if (r <= 0) {
                    shut(c);
                    break;
                }
                size_t use = r, off = 0;
                if (c->kind == HTTP && c->drop > 0 && c->in_len == 0) {
                    off = use < c->drop - 1 ? use : c->drop - 1;
                    c->drop -= off;
                    use -= off;
                } /* a body goes nowhere, but for its last byte */
                if (use) {
                    if (c->in_len + use > c->in_cap) {
                        c->in_cap = c->in_len + use + 2048;
                        c->in = realloc(c->in, c->in_cap);
                    }
                    memcpy(c->in + c->in_len, buf + off, use);
                    c->in_len += use;
                    if (!understand(c)) break;
                }
                if ((size_t)r < sizeof buf && !(ev[i].events & EPOLLRDHUP)) break;
            }
        }
        if (any) {
            long long t = now_ns();
            for (; tick <= t; tick += 10000000) {
                int s = tick / 10000000 % 100;
                char e[64];
                int l = sprintf(e, "data: %lld\n\n", now_ns());
                for (int i = 0; i < sse_n[s]; i++) {
                    struct conn *c = conns[sse[s][i]];
                    if (!c) continue;
                    put(c, e, l);
                    int before = sse_n[s];
                    flush(c);
                    if (sse_n[s] < before) i--;
                }
            }
        } else
            tick = now_ns();
    }
}
