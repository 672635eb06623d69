/* The load: a few requests again and again on many connections, and how long answers take.
 *
 *     load PORT CONNECTIONS DEPTH SECONDS RATE FRAME_FILE
 *
 * FRAME_FILE holds whole frames, their sizes included. A connection sends them in order,
 * again and again; connections start at different frames. Each keeps DEPTH requests in flight. RATE
 * is requests a second over all connections, or 0 for as many as the server answers; with a rate,
 * latency counts from when a request was due, even if it went out later. Answers are delimited by
 * their size and not parsed. One line of JSON on standard output: requests, bytes received, seconds,
 * and the median and 99th percentile of an answer's time in microseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 18, EVENTS = 256, DEPTH_MAX = 1024, BUCKETS = 1 << 20,
       FRAMES_MAX = 1 << 12 };

struct connection {
    int socket, is_waiting;
    unsigned started, answered;  /* requests whose first byte went out, answers that came */
    size_t sent;                 /* bytes of the request that is going out */
    unsigned next;               /* the frame that goes out now, or will */
    uint64_t skip;               /* bytes of the answer that is coming in */
    unsigned char head[4];
    unsigned head_size;
    int64_t began_ns[DEPTH_MAX];
};

struct frame {
    unsigned char *start;
    size_t size;
};

static unsigned char buffer[BUFFER];
static struct frame frames[FRAMES_MAX];
static unsigned frame_count;
static unsigned depth;
static int poller;
static int64_t interval_ns, due_ns;
static uint64_t answers, bytes;
static uint32_t microseconds[BUCKETS];  /* answers by latency */

static void check(int is_well, const char *what)
{
    if (!is_well) {
        perror(what);
        exit(1);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void watch(struct connection *c, int is_waiting)
{
    struct epoll_event event = {.events = EPOLLIN | (is_waiting ? EPOLLOUT : 0), .data.ptr = c};
    if (c->is_waiting != is_waiting)
        check(epoll_ctl(poller, EPOLL_CTL_MOD, c->socket, &event) == 0, "epoll_ctl");
    c->is_waiting = is_waiting;
}

/* Whether a request may start now; if so, record when its latency starts. */
static int begin(struct connection *c)
{
    int64_t now = now_ns(), since = now;
    if (c->started - c->answered >= depth)
        return 0;
    if (interval_ns) {
        if (due_ns > now)
            return 0;
        since = due_ns;
        due_ns += interval_ns;
    }
    c->began_ns[c->started++ % DEPTH_MAX] = since;
    return 1;
}

static void ask(struct connection *c)
{
    while (c->sent || begin(c)) {
        const struct frame *f = frames + c->next;
        ssize_t sent = send(c->socket, f->start + c->sent, f->size - c->sent, MSG_NOSIGNAL);
        if (sent < 0) {
            check(errno == EAGAIN, "send");
            /* The socket is full. A request of which nothing was sent has not started. */
            watch(c, 1);
            if (!c->sent)
                c->started--, due_ns -= interval_ns;
            return;
        }
        c->sent += sent;
        if (c->sent == f->size) {
            c->sent = 0;
            c->next = (c->next + 1) % frame_count;
        }
    }
    watch(c, 0);
}

static void end(struct connection *c)
{
    int64_t took = (now_ns() - c->began_ns[c->answered++ % DEPTH_MAX]) / 1000;
    microseconds[took < BUCKETS ? took : BUCKETS - 1]++;
    answers++;
}

static void hear(struct connection *c)
{
    /* Bodies are discarded, not copied (MSG_TRUNC): the load must not be the bottleneck. */
    ssize_t received = c->skip ? recv(c->socket, NULL, c->skip, MSG_TRUNC)
                               : recv(c->socket, buffer, BUFFER, 0);
    if (received < 0 && errno == EAGAIN)
        return;
    check(received > 0, "the server closed a connection");
    bytes += received;
    for (ssize_t i = 0; i < received;) {
        if (c->head_size < 4) {
            c->head[c->head_size++] = buffer[i++];
            if (c->head_size < 4)
                continue;
            uint32_t size;
            memcpy(&size, c->head, 4);
            c->skip = ntohl(size);
        }
        uint64_t part = (uint64_t)(received - i) < c->skip ? (uint64_t)(received - i) : c->skip;
        c->skip -= part;
        i += part;
        if (!c->skip) {
            c->head_size = 0;
            end(c);
        }
    }
}

static struct connection *open_one(int port, unsigned next)
{
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct connection *c = calloc(1, sizeof *c);
    check(c != NULL, "calloc");
    c->next = next;
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);  /* not paced, as in server.c */
    check(connect(c->socket, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    check(fcntl(c->socket, F_SETFL, O_NONBLOCK) == 0, "fcntl");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    check(epoll_ctl(poller, EPOLL_CTL_ADD, c->socket, &event) == 0, "epoll_ctl");
    return c;
}

static void load_frames(const char *path)
{
    struct stat status;
    int file = open(path, O_RDONLY);
    check(file >= 0 && fstat(file, &status) == 0, path);
    unsigned char *at = malloc(status.st_size), *end = at + status.st_size;
    check(at && read(file, at, status.st_size) == status.st_size, path);
    while (at < end) {
        uint32_t size;
        memcpy(&size, at, 4);
        check(frame_count < FRAMES_MAX, "too many frames");
        frames[frame_count++] = (struct frame){at, 4 + (size_t)ntohl(size)};
        at += 4 + (size_t)ntohl(size);
    }
    check(frame_count && at == end, "frames");
}

static int percentile(double share)
{
    uint64_t seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        seen += microseconds[i];
        if (seen >= answers * share)
            return i;
    }
    return BUCKETS;
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS];
    if (argc != 7) {
        fprintf(stderr, "usage: load PORT CONNECTIONS DEPTH SECONDS RATE FRAME_FILE\n");
        return 2;
    }
    int count = atoi(argv[2]);
    double rate = atof(argv[5]);
    depth = atoi(argv[3]);
    interval_ns = rate > 0 ? 1e9 / rate : 0;
    load_frames(argv[6]);
    poller = epoll_create1(0);
    struct connection **all = calloc(count, sizeof *all);
    for (int i = 0; i < count; i++)
        all[i] = open_one(atoi(argv[1]), (unsigned)i * frame_count / count);
    int64_t start = due_ns = now_ns(), stop = start + atof(argv[4]) * 1e9, now = start;
    for (int i = 0; i < count && !interval_ns; i++)
        ask(all[i]);
    for (int turn = 0; now < stop; now = now_ns()) {
        int64_t wait = interval_ns ? due_ns - now : stop - now;
        struct timespec timeout = {.tv_sec = wait > 0 ? wait / 1000000000 : 0,
                                   .tv_nsec = wait > 0 ? wait % 1000000000 : 0};
        int ready = epoll_pwait2(poller, events, EVENTS, &timeout, NULL);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & ~EPOLLOUT)
                hear(c);
            if (!interval_ns || c->is_waiting)
                ask(c);
        }
        /* With a rate, connections take turns as long as requests are due. */
        for (int i = 0; interval_ns && due_ns <= now_ns() && i < count; i++)
            ask(all[turn++ % count]);
        if (interval_ns && due_ns <= now_ns())
            check(epoll_wait(poller, events, 1, 10) >= 0, "epoll_wait");
    }
    printf("{\"requests\": %lu, \"bytes\": %lu, \"seconds\": %.6f, \"p50_us\": %d, \"p99_us\": %d}\n",
           (unsigned long)answers, (unsigned long)bytes, (now_ns() - start) / 1e9,
           percentile(0.5), percentile(0.99));
    return 0;
}
