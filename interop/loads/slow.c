/* Clients that read a little every 50 ms, and ask once on each connection. */
#include "load.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAUSE_NS = 50000000, RECEIVE_BUFFER = 16384, LEAST = 1 << 20 };

struct client {
    int fd;
    long long got;
};

static void start(struct client *c) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int size = RECEIVE_BUFFER;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    c->got = 0;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (connect(c->fd, (struct sockaddr *)&a, sizeof a)) {
        perror("load: connect");
        exit(1);
    }
    struct request *r = next_request();
    if (send(c->fd, r->bytes, r->len, MSG_NOSIGNAL) < 0) errors++;
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

/* Reads `step` bytes at a time until so many answers, of at least 1 MB, have ended. Returns the exit code. */
int read_slowly(size_t step, long total) {
    char *buf = malloc(step);
    long begun = 0, finished = 0;
    struct client *clients = calloc(options.connections, sizeof *clients);
    for (int i = 0; i < options.connections; i++) clients[i].fd = -1;
    while (finished < total) {
        long long round = now_ns();
        for (int i = 0; i < options.connections; i++) {
            struct client *c = &clients[i];
            if (c->fd < 0) {
                if (begun == total) continue;
                begun++;
                start(c);
                continue;
            }
            ssize_t n = recv(c->fd, buf, step, 0);
            if (n < 0 && errno == EAGAIN) continue;
            if (n > 0) {
                c->got += n;
                received += n;
                continue;
            }
            if (c->got < LEAST) errors++;
            close(c->fd);
            c->fd = -1;
            finished++;
        }
        long long rest = PAUSE_NS - (now_ns() - round);
        if (rest > 0) usleep(rest / 1000);
    }
    printf("done %ld %lld 0 0 0 %lld 0 0 0 -\n", finished, errors, received);
    return 0;
}
