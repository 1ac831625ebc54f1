/* Takes answers apart. */
#include "load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Bytes of a message of 64 bytes from a WebSocket server. */
enum { MESSAGE = 66 };

static int fail(struct connection *c, const char *why) {
    error(why);
    again(c);
    return 0;
}

/* Counts an answer that is whole, and sends the next request. */
int complete(struct connection *c, long long now) {
    c->phase = HEAD;
    c->head_len = 0;
    c->waiting--;
    if (measuring) {
        units++;
        if (c->status > 0 && c->status < STATUSES) statuses[c->status]++;
        if (c->status != options.expected) {
            char text[64];
            snprintf(text, sizeof text, "status %d", c->status);
            error(text);
        }
        record(now - c->since);
    } else {
        count_ready(c);
    }
    if (c->waiting) return 1;
    if (options.fresh) {
        if (measuring)
            again(c);
        else
            end(c);
        return 0;
    }
    if (c->out_len) return fail(c, "answered early");
    if (measuring && !stopping && !ask(c)) {
        again(c);
        return 0;
    }
    return 1;
}

/* Understands a head, which ends before its empty line. 0: it is none. */
static int understand(struct connection *c, const char *head, size_t n) {
    if (n < 12) return 0;
    c->status = atoi(head + 9);
    c->left = -1;
    c->chunked = 0;
    c->phase = HEAD;
    if (c->status == 100 || c->status == 103) return 1;
    const char *end = head + n;
    for (const char *line = memchr(head, '\n', n); line && ++line < end; line = memchr(line, '\n', end - line)) {
        if (!strncasecmp(line, "content-length:", 15)) c->left = atoll(line + 15);
        if (!strncasecmp(line, "transfer-encoding: chunked", 26)) c->chunked = 1;
    }
    if (c->status == 204 || c->status == 304) c->left = 0;
    c->phase = c->chunked ? CHUNK_SIZE : c->left >= 0 ? LENGTH : TO_EOF;
    c->chunk_size = 0;
    c->line_has_text = 0;
    return 1;
}

/* Reads a head, of which a part may have come before. Returns the bytes that it took, or 0 if the connection is gone. */
static size_t read_head(struct connection *c, const char *bytes, size_t n) {
    if (!c->waiting) return fail(c, "answer without request");
    const char *end = c->head_len ? NULL : memmem(bytes, n, "\r\n\r\n", 4);
    if (end) {
        if (!understand(c, bytes, end + 2 - bytes)) return fail(c, "bad head");
        return end + 4 - bytes;
    }
    size_t before = c->head_len, room = sizeof c->head - before, used = n < room ? n : room;
    if (!used) return fail(c, "long head");
    memcpy(c->head + before, bytes, used);
    c->head_len += used;
    end = memmem(c->head, c->head_len, "\r\n\r\n", 4);
    if (!end) return used;
    if (!understand(c, c->head, end + 2 - c->head)) return fail(c, "bad head");
    c->head_len = 0;
    return end + 4 - c->head - before;
}

/* Goes on after a head. 0: the connection is gone. */
static int after_head(struct connection *c, long long now) {
    if (options.websocket && c->status == 101) {
        c->upgraded = 1;
        c->waiting = 0;
        count_ready(c);
        return 1;
    }
    if (options.events) {
        count_ready(c);
        if (c->status != 200) error("status of an event stream");
        c->phase = TO_EOF;
    }
    return c->phase == LENGTH && c->left == 0 ? complete(c, now) : 1;
}

/* Counts events, whose data is the time at which they were sent. */
static void read_events(struct connection *c, const char *bytes, size_t n, long long now) {
    char text[512 + sizeof c->tail];
    if (n > 512) n = 512;
    memcpy(text, c->tail, c->tail_len);
    memcpy(text + c->tail_len, bytes, n);
    size_t len = c->tail_len + n, at = 0;
    char *data;
    while ((data = memmem(text + at, len - at, "data: ", 6))) {
        char *end = memchr(data, '\n', text + len - data);
        if (!end) {
            at = data - text;
            break;
        }
        if (measuring) {
            units++;
            record(now - atoll(data + 6));
        }
        at = end + 1 - text;
    }
    if (at == 0 && len > 60) at = len - 5;
    c->tail_len = len - at > 60 ? 0 : len - at;
    memmove(c->tail, text + at, c->tail_len);
}

static int read_messages(struct connection *c, size_t n, long long now) {
    c->message += n;
    if (c->message > MESSAGE) return fail(c, "too much from a WebSocket");
    if (c->message < MESSAGE) return 1;
    c->message = 0;
    c->waiting = 0;
    if (measuring) {
        units++;
        record(now - c->since);
        if (!stopping) ask(c);
    }
    return 1;
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads one byte of what is around chunks. 0: the connection is gone. */
static int read_framing(struct connection *c, char byte, long long now) {
    if (c->phase == CHUNK_SIZE && byte != '\n') {
        int digit = hex(byte);
        if (digit >= 0) c->chunk_size = c->chunk_size * 16 + digit;
    } else if (c->phase == CHUNK_SIZE) {
        c->left = c->chunk_size;
        c->phase = c->chunk_size ? CHUNK : TRAILER;
        c->chunk_size = 0;
        c->line_has_text = 0;
    } else if (c->phase == CHUNK_END) {
        if (byte == '\n') c->phase = CHUNK_SIZE;
    } else if (byte == '\n') {
        if (!c->line_has_text) return complete(c, now);
        c->line_has_text = 0;
    } else if (byte != '\r') {
        c->line_has_text = 1;
    }
    return 1;
}

/* Takes what has been received. 0: the connection is gone. */
int feed(struct connection *c, const char *bytes, size_t n) {
    long long now = now_ns();
    const char *end = bytes + n;
    if (measuring) received += n;
    while (bytes < end) {
        size_t rest = end - bytes;
        if (c->upgraded) return read_messages(c, rest, now);
        if (c->phase == HEAD) {
            size_t used = read_head(c, bytes, rest);
            if (!used) return 0;
            bytes += used;
            if (!c->head_len && !after_head(c, now)) return 0;
        } else if (c->phase == TO_EOF) {
            if (options.events) read_events(c, bytes, rest, now);
            return 1;
        } else if (c->phase == LENGTH || c->phase == CHUNK) {
            size_t used = (long long)rest < c->left ? rest : (size_t)c->left;
            bytes += used;
            c->left -= used;
            if (c->left) continue;
            if (c->phase == CHUNK)
                c->phase = CHUNK_END;
            else if (!complete(c, now))
                return 0;
        } else if (!read_framing(c, *bytes++, now)) {
            return 0;
        }
    }
    return 1;
}
