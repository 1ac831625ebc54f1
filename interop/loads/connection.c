/* Connections: they are opened, requests are sent on them, and what arrives goes to answer.c. */
#include "load.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int epoll;
static SSL_CTX *context;

static int keep_session(SSL *ssl, SSL_SESSION *session) {
    struct connection *c = SSL_get_app_data(ssl);
    if (c->session) SSL_SESSION_free(c->session);
    c->session = session;
    return 1;
}

/* Makes what connections share. `pem` is a file with certificate and key, or NULL. */
void prepare_connections(const char *pem) {
    epoll = epoll_create1(0);
    if (!options.tls) return;
    context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    if (options.resume) {
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(context, keep_session);
    }
    if (!pem) return;
    if (SSL_CTX_use_certificate_chain_file(context, pem) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, pem, SSL_FILETYPE_PEM) != 1) {
        ERR_print_errors_fp(stderr);
        exit(2);
    }
}

void begin(struct connection *c) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->since = now_ns();
    c->state = CONNECTING;
    c->phase = HEAD;
    c->waiting = c->upgraded = 0;
    c->head_len = c->out_len = c->message = c->tail_len = 0;
    if (connect(c->fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS) {
        perror("load: connect");
        exit(1);
    }
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
}

void end(struct connection *c) {
    if (c->ssl) {
        if (c->state == OPEN) SSL_set_shutdown(c->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
        SSL_free(c->ssl);
        c->ssl = NULL;
    }
    if (c->state != CLOSED) close(c->fd);
    c->state = CLOSED;
}

/* Ends a connection and opens it anew, unless no more requests are sent. */
void again(struct connection *c) {
    end(c);
    if (!stopping) begin(c);
}

/* Whether a result of TLS says that the socket has to be waited for. */
static int has_to_wait(struct connection *c, int result) {
    int why = SSL_get_error(c->ssl, result);
    ERR_clear_error();
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE;
}

/* Sends what is left of the requests. 0: that cannot be done any more. */
static int flush(struct connection *c) {
    while (c->out_len) {
        ssize_t sent;
        if (c->ssl) {
            sent = SSL_write(c->ssl, c->out, c->out_len > 1 << 20 ? 1 << 20 : c->out_len);
            if (sent <= 0) return has_to_wait(c, sent);
        } else {
            sent = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
            if (sent < 0) return errno == EAGAIN;
        }
        c->out += sent;
        c->out_len -= sent;
    }
    return 1;
}

/* Appends a request to those of this connection, with a number of its own. Returns their length. */
static size_t append(struct connection *c, size_t at, const struct request *r) {
    if (c->own_capacity < at + r->len) c->own = realloc(c->own, c->own_capacity = (at + r->len) * 2);
    memcpy(c->own + at, r->bytes, r->len);
    if (r->mark) {
        char number[16];
        snprintf(number, sizeof number, "%010lld", serial++ % 10000000000LL);
        memcpy(c->own + at + (r->mark - r->bytes), number, 10);
    }
    return at + r->len;
}

/* Sends the next requests, or a message of 64 bytes. 0: that cannot be done. */
int ask(struct connection *c) {
    static const char frame[70] = {(char)0x82, (char)(0x80 | 64), 1, 2, 3, 4};
    // The time of a new connection counts.
    if (!options.fresh || c->upgraded) c->since = now_ns();
    c->waiting = options.depth;
    if (c->upgraded) {
        c->out = frame;
        c->out_len = sizeof frame;
        c->message = 0;
        return flush(c);
    }
    if (options.depth == 1) {
        struct request *r = next_request();
        c->out = r->bytes;
        c->out_len = r->len;
        if (r->mark) {
            append(c, 0, r);
            c->out = c->own;
        }
        return flush(c);
    }
    size_t len = 0;
    for (int i = 0; i < options.depth; i++) len = append(c, len, next_request());
    c->out = c->own;
    c->out_len = len;
    return flush(c);
}

/* Goes on after the server has ended a connection, which may be the end of an answer. */
void gone(struct connection *c, const char *why) {
    if (c->state == OPEN && c->waiting && c->phase == TO_EOF && !c->upgraded && !options.events) {
        if (complete(c, now_ns()) && c->state == OPEN) again(c);
        return;
    }
    if (c->waiting && !stopping)
        error(why);
    else if (measuring)
        reconnects++;
    again(c);
}

/* Sends the first request. 0: the connection is gone. */
static int opened(struct connection *c) {
    c->state = OPEN;
    if (!ask(c)) {
        gone(c, "write");
        return 0;
    }
    if (options.hang) count_ready(c);
    return 1;
}

static int connected(struct connection *c) {
    if (!options.tls) return opened(c);
    c->ssl = SSL_new(context);
    SSL_set_fd(c->ssl, c->fd);
    SSL_set_app_data(c->ssl, c);
    SSL_set_connect_state(c->ssl);
    SSL_set_tlsext_host_name(c->ssl, "localhost");
    if (options.resume && c->session) SSL_set_session(c->ssl, c->session);
    c->state = SHAKING;
    return 1;
}

/* Goes on with a handshake. 0: it is not done yet, or the connection is gone. */
static int shake(struct connection *c) {
    int result = SSL_do_handshake(c->ssl);
    if (result != 1) {
        char text[120];
        ERR_error_string_n(ERR_peek_error(), text, sizeof text);
        if (has_to_wait(c, result)) return 0;
        error(text);
        again(c);
        return 0;
    }
    if (measuring && SSL_session_reused(c->ssl)) resumed++;
    return opened(c);
}

static void read_all(struct connection *c, unsigned events) {
    static char buf[1 << 18];
    for (;;) {
        ssize_t n;
        if (c->ssl) {
            n = SSL_read(c->ssl, buf, sizeof buf);
            if (n <= 0 && has_to_wait(c, n)) return;
        } else {
            n = recv(c->fd, buf, sizeof buf, 0);
            if (n < 0 && errno == EAGAIN) return;
        }
        if (n <= 0) {
            gone(c, n ? "reset by server" : "closed by server");
            return;
        }
        if (!feed(c, buf, n)) return;
        if (!c->ssl && (size_t)n < sizeof buf && !(events & EPOLLRDHUP)) return;
    }
}

static void serve(struct connection *c, unsigned events) {
    if (c->state == CLOSED) return;
    if (c->state == CONNECTING) {
        if (events & (EPOLLERR | EPOLLHUP)) {
            error("connect");
            again(c);
            return;
        }
        if (!(events & EPOLLOUT) || !connected(c)) return;
    }
    if (c->state == SHAKING) {
        if (!shake(c)) return;
    } else if (events & EPOLLOUT && c->out_len && !flush(c)) {
        gone(c, "write");
        return;
    }
    read_all(c, events);
}

/* Waits for events once, and serves them. */
void turn(int ms) {
    static struct epoll_event events[512];
    int n = epoll_wait(epoll, events, 512, ms);
    for (int i = 0; i < n; i++) serve(events[i].data.ptr, events[i].events);
}
