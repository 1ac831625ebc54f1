/* A link between two network namespaces, for kernels without netem: a TUN device in each, and this program between them.
   Each way has a rate, a queue of limited length in front of it, a delay, and random losses. Every 100 ms it prints a
   line with the bytes that have passed towards B so far, for each flow: protocol:port=bytes, with the port of B.

   link NAMESPACE_A NAMESPACE_B DELAY_MS LOSS_PERCENT LOSS_BACK_PERCENT RATE_MBIT QUEUE_PACKETS SEED
   A has the address 10.9.0.1, B 10.9.0.2. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MTU = 1500, SLOTS = 1 << 15, FLOWS = 64 };

/* A packet that has left the queue or waits in it, and when it arrives. */
struct packet {
    int64_t due;
    int len;
    unsigned char bytes[MTU];
};

/* One way of the link. */
struct way {
    int from, to;
    double loss;
    int64_t free_at; /* Time at which the link has sent everything that waits. */
    struct packet *ring;
    unsigned head, count;
};

struct flow {
    int protocol, port;
    uint64_t bytes;
};

static struct flow flows[FLOWS];
static int64_t delay, packet_time;
static double ns_per_byte;
static long queue;
static uint64_t state;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Returns a number from 0 to 1 (xorshift). */
static double chance(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) / 9007199254740992.0;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Makes the device of a namespace, and brings it up. */
static int device(const char *namespace, const char *address) {
    char text[300];
    struct ifreq request = {.ifr_name = "link0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    snprintf(text, sizeof text, "/var/run/netns/%s", namespace);
    int ns = open(text, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET))
        fail(namespace);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tun < 0 || ioctl(tun, TUNSETIFF, &request))
        fail("tun");
    snprintf(text, sizeof text, "ip addr add %s/24 dev link0 && ip link set link0 mtu %d txqueuelen 10000 up && ip link set lo up",
             address, MTU);
    if (system(text))
        fail("ip");
    return tun;
}

static void count(const struct packet *p) {
    int head = (p->bytes[0] & 15) * 4;
    if (p->bytes[0] >> 4 != 4 || p->len < head + 4)
        return;
    int protocol = p->bytes[9], port = p->bytes[head + 2] << 8 | p->bytes[head + 3];
    for (struct flow *f = flows; f < flows + FLOWS; f++)
        if (!f->bytes || (f->protocol == protocol && f->port == port)) {
            *f = (struct flow){protocol, port, f->bytes + p->len};
            return;
        }
}

static void print(void) {
    for (struct flow *f = flows; f < flows + FLOWS && f->bytes; f++)
        printf("%d:%d=%llu ", f->protocol, f->port, (unsigned long long)f->bytes);
    printf("\n");
    fflush(stdout);
}

/* Takes what has been sent into a way. */
static void take(struct way *w) {
    while (w->count < SLOTS) {
        struct packet *p = &w->ring[(w->head + w->count) % SLOTS];
        p->len = read(w->from, p->bytes, MTU);
        if (p->len <= 0)
            return;
        int64_t time = now(), begin = w->free_at > time ? w->free_at : time;
        if (chance() < w->loss || begin - time >= queue * packet_time)
            continue;
        w->free_at = begin + (int64_t)(p->len * ns_per_byte);
        p->due = w->free_at + delay;
        w->count++;
    }
}

/* Hands over what is due. Returns when the next packet is. */
static int64_t give(struct way *w, int counts, int64_t next) {
    int64_t time = now();
    for (; w->count; w->head = (w->head + 1) % SLOTS, w->count--) {
        struct packet *p = &w->ring[w->head];
        if (p->due > time)
            return p->due < next ? p->due : next;
        if (counts)
            count(p);
        if (write(w->to, p->bytes, p->len) < 0)
            fail("write");
    }
    return next;
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "see link.c for the arguments\n");
        return 2;
    }
    int a = device(argv[1], "10.9.0.1"), b = device(argv[2], "10.9.0.2");
    delay = atof(argv[3]) * 1e6;
    ns_per_byte = 8e3 / atof(argv[6]);
    packet_time = MTU * ns_per_byte;
    queue = atol(argv[7]);
    state = 88172645463325252ULL + strtoull(argv[8], NULL, 10) * 2654435761U;
    struct way ways[2] = {{.from = a, .to = b, .loss = atof(argv[4]) / 100}, {.from = b, .to = a, .loss = atof(argv[5]) / 100}};
    for (int i = 0; i < 2; i++)
        if (!(ways[i].ring = calloc(SLOTS, sizeof *ways[i].ring)))
            fail("calloc");
    int64_t printed = now();
    print();
    for (;;) {
        int64_t next = give(&ways[1], 0, give(&ways[0], 1, printed + 100000000)), time = now();
        if (time >= printed + 100000000) {
            print();
            printed = time;
        }
        int64_t left = next > time ? next - time : 0;
        struct timespec wait = {left / 1000000000, left % 1000000000};
        struct pollfd fds[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
        if (ppoll(fds, 2, &wait, NULL) > 0)
            for (int i = 0; i < 2; i++)
                take(&ways[i]);
    }
}
