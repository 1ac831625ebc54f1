/* What the parts of the load generator share: load.c has the order of things, connection.c connections, answer.c what is
   received on them, slow.c clients that read slowly. */
#define _GNU_SOURCE
#include <openssl/ssl.h>
#include <stddef.h>

enum state { CLOSED, CONNECTING, SHAKING, OPEN };

/* What comes next in an answer. */
enum phase { HEAD, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, TO_EOF };

struct request {
    char *bytes;
    size_t len;
    /* Where another number is put each time. */
    char *mark;
};

struct connection {
    int fd;
    enum state state;
    /* Answers that are still to come. */
    int waiting;
    /* Whether it has been counted as ready. */
    int warm;
    int upgraded;
    SSL *ssl;
    SSL_SESSION *session;
    /* When what is under way began, in nanoseconds. */
    long long since;

    /* The answer. */
    enum phase phase;
    int status, chunked;
    char head[8192];
    size_t head_len;
    long long left;
    unsigned long chunk_size;
    int line_has_text;
    /* Bytes of a WebSocket message, and the rest of an event. */
    size_t message;
    char tail[64];
    size_t tail_len;

    /* The request: what is left of it, and the memory of one that is made for this connection. */
    const char *out;
    size_t out_len;
    char *own;
    size_t own_capacity;
};

/* The command line. */
struct options {
    int port, connections, depth, fresh, tls, resume, websocket, events, hang, expected, by_chance;
    double seconds;
};

extern struct options options;
extern struct request *requests;
extern size_t request_count;
extern long long serial;

/* What has been counted. Latencies are in microseconds. */
enum { MOST_LATENCIES = 1 << 23, STATUSES = 600 };

extern long long units, errors, received, resumed, reconnects;
extern long statuses[STATUSES];
extern unsigned *latencies;
extern size_t latency_count;
extern char first_error[200];
/* Whether units are counted, whether no more requests are sent, and the number of connections that are ready. */
extern int measuring, stopping, ready;

long long now_ns(void);
struct request *next_request(void);
void error(const char *what);
void record(long long ns);
void count_ready(struct connection *c);

/* connection.c. Where an int is returned, 0 says that the connection is gone. */
void prepare_connections(const char *pem);
void begin(struct connection *c);
void end(struct connection *c);
void again(struct connection *c);
int ask(struct connection *c);
void gone(struct connection *c, const char *why);
void turn(int ms);

/* answer.c */
int feed(struct connection *c, const char *bytes, size_t n);
int complete(struct connection *c, long long now);

/* slow.c */
int read_slowly(size_t step, long total);
