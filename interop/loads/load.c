/* The load generator. One thread; it opens its connections first, says "ready", waits for a line, and then measures, so that
   the CPU time of a server can be read at both ends. What is under way at the end is waited for and counted.

   load -p PORT -f FILE [options]
     -f FILE   requests, each as a line with its length in decimal and then its bytes; "@@@@@@@@@@" becomes another number
               each time
     -c N      connections (50)                    -d SECONDS  length (1.5)
     -z        requests by chance, not in turn     -P N        requests written at once (pipelining)
     -k        a new connection for each request   -x STATUS   the status that is expected (200)
     -T        TLS                                 -R          with resumption of sessions
     -E FILE   certificate and key of the client   -u N        first number to put into requests
     -w        WebSocket: messages of 64 bytes, one at a time
     -s        count events of streams             -H          send the request, expect nothing
     -S BYTES  slow clients: each reads that much every 50 ms; no "ready"
     -N N      requests of slow clients in all (10000)

   The last line is: done UNITS ERRORS P50 P99 MAX BYTES SECONDS RESUMED RECONNECTS STATUSES MESSAGE, latencies in microseconds. */
#include "load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

struct options options = {.connections = 50, .depth = 1, .expected = 200, .seconds = 1.5};
struct request *requests;
size_t request_count;
long long serial;
long long units, errors, received, resumed, reconnects;
long statuses[STATUSES];
unsigned *latencies;
size_t latency_count;
char first_error[200];
int measuring, stopping, ready;

static struct connection *connections;

long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void error(const char *what) {
    if (!first_error[0]) snprintf(first_error, sizeof first_error, "%s", what);
    errors++;
}

void record(long long ns) {
    if (latency_count < MOST_LATENCIES) latencies[latency_count++] = ns / 1000;
}

void count_ready(struct connection *c) {
    if (!c->warm) ready++;
    c->warm = 1;
}

struct request *next_request(void) {
    static size_t at;
    static unsigned seed = 12345;
    if (!options.by_chance) return &requests[at++ % request_count];
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return &requests[seed % request_count];
}

static void read_requests(const char *path) {
    FILE *f = path ? fopen(path, "rb") : NULL;
    size_t capacity = 0;
    for (size_t n; f && fscanf(f, "%zu", &n) == 1;) {
        fgetc(f);
        if (request_count == capacity) requests = realloc(requests, (capacity = capacity * 2 + 1) * sizeof *requests);
        struct request *r = &requests[request_count++];
        r->bytes = malloc(n + 1);
        r->len = fread(r->bytes, 1, n, f);
        r->mark = n < 65536 ? memmem(r->bytes, r->len, "@@@@@@@@@@", 10) : NULL;
    }
    if (!request_count) {
        fprintf(stderr, "load: no requests (-f FILE)\n");
        exit(2);
    }
    fclose(f);
}

/* Opens all connections, some at a time, and has each answered once. */
static int open_connections(void) {
    long long limit = now_ns() + 30000000000LL;
    int depth = options.depth, opened = 0;
    options.depth = 1;
    while (ready < options.connections) {
        while (opened < options.connections && opened < ready + 200) begin(&connections[opened++]);
        turn(10);
        if (now_ns() > limit || errors > 1000) {
            printf("failed: %d of %d connections ready, %lld errors, %s\n", ready, options.connections, errors, first_error);
            return 0;
        }
    }
    options.depth = depth;
    return 1;
}

/* Waits for a line, and reads what arrives in the meantime. 0: there will be none. */
static int wait_for_line(void) {
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct timeval at_once = {0, 0};
        fd_set set;
        FD_ZERO(&set);
        FD_SET(0, &set);
        if (select(1, &set, NULL, NULL, &at_once) > 0) {
            char line[64];
            return fgets(line, sizeof line, stdin) != NULL;
        }
        turn(5);
    }
}

static void start(void) {
    for (int i = 0; i < options.connections; i++) {
        struct connection *c = &connections[i];
        if (options.fresh)
            begin(c);
        else if (c->state == OPEN && !c->waiting && !ask(c))
            gone(c, "write");
    }
}

/* Waits for answers that are under way, for five seconds at most. */
static void finish(void) {
    long long limit = now_ns() + 5000000000LL;
    for (;;) {
        int left = 0;
        for (int i = 0; i < options.connections; i++) {
            struct connection *c = &connections[i];
            left += c->state != CLOSED && (c->waiting > 0 || c->state != OPEN);
        }
        if (!left) return;
        if (now_ns() > limit) {
            char text[64];
            snprintf(text, sizeof text, "%d without an answer after 5 s", left);
            error(text);
            return;
        }
        turn(20);
    }
}

static int by_size(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return x < y ? -1 : x > y;
}

static unsigned percentile(double share) {
    return latency_count ? latencies[(size_t)((latency_count - 1) * share)] : 0;
}

static void print(long long ns) {
    qsort(latencies, latency_count, sizeof *latencies, by_size);
    printf("done %lld %lld %u %u %u %lld %.4f %lld %lld ", units, errors, percentile(0.5), percentile(0.99), percentile(1),
           received, ns / 1e9, resumed, reconnects);
    int any = 0;
    for (int i = 0; i < STATUSES; i++)
        if (statuses[i]) printf("%s%d:%ld", any++ ? "," : "", i, statuses[i]);
    printf("%s %s\n", any ? "" : "-", first_error);
}

int main(int argc, char **argv) {
    const char *file = NULL, *pem = NULL;
    size_t step = 0;
    long total = 10000;
    for (int o; (o = getopt(argc, argv, "p:f:c:d:zP:kTRE:wsHx:u:S:N:")) != -1;) {
        switch (o) {
        case 'p': options.port = atoi(optarg); break;
        case 'f': file = optarg; break;
        case 'c': options.connections = atoi(optarg); break;
        case 'd': options.seconds = atof(optarg); break;
        case 'z': options.by_chance = 1; break;
        case 'P': options.depth = atoi(optarg); break;
        case 'k': options.fresh = 1; break;
        case 'T': options.tls = 1; break;
        case 'R': options.resume = 1; break;
        case 'E': pem = optarg; break;
        case 'w': options.websocket = 1; break;
        case 's': options.events = 1; break;
        case 'H': options.hang = 1; break;
        case 'x': options.expected = atoi(optarg); break;
        case 'u': serial = atoll(optarg); break;
        case 'S': step = atol(optarg); break;
        case 'N': total = atol(optarg); break;
        default: return 2;
        }
    }
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    read_requests(file);
    if (step) return read_slowly(step, total);
    latencies = malloc(MOST_LATENCIES * sizeof *latencies);
    connections = calloc(options.connections, sizeof *connections);
    prepare_connections(pem);
    if (!options.fresh && !open_connections()) return 1;
    if (!wait_for_line()) return 0;
    errors = 0;
    first_error[0] = 0;
    measuring = !options.hang;
    long long begun = now_ns(), deadline = begun + (long long)(options.seconds * 1e9);
    if (!options.hang && !options.events) start();
    while (now_ns() < deadline) turn(5);
    stopping = 1;
    long long took = now_ns() - begun;
    if (!options.events && !options.hang) finish();
    print(took);
    return 0;
}
