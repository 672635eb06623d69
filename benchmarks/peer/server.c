/* The yardstick: what a broker's system calls cost on their own.
 *
 *     server PORT FILE FETCH_BYTES
 *
 * One thread, epoll, non-blocking sockets. Frames are `size int32 | api key int16 | version int16 |
 * correlation id int32 | ...`, as Kafka's requests begin:
 *   key 0   CRC-32C over what follows the header, and one write of it at the end of FILE
 *   key 1   FETCH_BYTES of FILE by sendfile, after an answer's header; positions wrap around
 *   else    nothing
 * Answers are `size | correlation id`, sent in one piece for all requests of one receive. FILE
 * is overwritten from its start at 1 GiB, so that it stays in the page cache. Prints "ready\n" once
 * it listens. Errors, except on a connection, end the program: it is a yardstick, not a server.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nmmintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 12, OUT = 1 << 16, BUFFER = 4 << 20, RECEIVE = 1 << 18, EVENTS = 256 };
static const int64_t WRAP = 1LL << 30;

struct connection {
    int socket;
    int is_waiting;          /* for room in the socket's send buffer */
    size_t start, end;       /* of the unprocessed bytes in `in` */
    size_t out_start, out_end;
    int64_t position, left;  /* of the range of the file that is being sent */
    unsigned char *in;
    unsigned char out[OUT];
};

static int file, poller;
static int64_t fetch_bytes, file_end, file_size;
static volatile uint64_t checksums;

static void check(int is_well, const char *what)
{
    if (!is_well) {
        perror(what);
        exit(1);
    }
}

static uint32_t crc32c(const unsigned char *data, size_t size)
{
    uint64_t crc = 0xffffffff;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; size; data++, size--)
        crc = _mm_crc32_u8((uint32_t)crc, *data);
    return ~(uint32_t)crc;
}

static uint32_t get32(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static void put32(unsigned char *at, uint32_t value)
{
    value = htonl(value);
    memcpy(at, &value, 4);
}

static void append(const unsigned char *data, size_t size)
{
    checksums += crc32c(data, size);
    if (file_end + (int64_t)size > WRAP)
        file_end = 0;
    check(pwrite(file, data, size, file_end) == (ssize_t)size, "write");
    file_end += size;
}

static void answer(struct connection *c, const unsigned char *correlation_id, size_t more)
{
    put32(c->out + c->out_end, 4 + more);
    memcpy(c->out + c->out_end + 4, correlation_id, 4);
    c->out_end += 8;
}

/* Send what is ready: 1 if all was sent, 0 if the socket is full, -1 on an error. */
static int flush(struct connection *c)
{
    while (c->out_start < c->out_end) {
        ssize_t sent = send(c->socket, c->out + c->out_start, c->out_end - c->out_start,
                            MSG_NOSIGNAL | (c->left ? MSG_MORE : 0));
        if (sent < 0)
            return errno == EAGAIN ? 0 : -1;
        c->out_start += sent;
    }
    c->out_start = c->out_end = 0;
    while (c->left) {
        off_t position = c->position;
        ssize_t sent = sendfile(c->socket, file, &position, c->left);
        if (sent < 0)
            return errno == EAGAIN ? 0 : -1;
        c->position += sent;
        c->left -= sent;
    }
    return 1;
}

/* Process all complete requests received; returns as `flush` does. */
static int serve(struct connection *c)
{
    while (c->end - c->start >= 4) {
        size_t size = 4 + (size_t)get32(c->in + c->start);
        const unsigned char *request = c->in + c->start;
        check(size >= HEADER && size <= BUFFER, "frame");
        if (c->end - c->start < size)
            break;
        uint32_t key = get32(request + 4) >> 16;
        c->start += size;
        if (key == 0)
            append(request + HEADER, size - HEADER);
        answer(c, request + 8, key == 1 ? fetch_bytes : 0);
        if (key == 1) {
            c->left = fetch_bytes;
            if (c->position + fetch_bytes > file_size)
                c->position = 0;
        }
        if (key == 1 || c->out_end + 8 > OUT) {
            int done = flush(c);
            if (done <= 0)
                return done;
        }
    }
    return flush(c);
}

static ssize_t receive(struct connection *c)
{
    size_t rest = c->end - c->start, limit = RECEIVE;
    if (c->start) {
        memmove(c->in, c->in + c->start, rest);
        c->start = 0;
        c->end = rest;
    }
    /* Receive a large frame exactly to its end, so that little has to be moved. */
    if (rest >= 4 && 4 + (size_t)get32(c->in) > rest + RECEIVE)
        limit = 4 + (size_t)get32(c->in) - rest;
    if (limit > BUFFER - rest)
        limit = BUFFER - rest;
    ssize_t received = recv(c->socket, c->in + c->end, limit, 0);
    if (received > 0)
        c->end += received;
    return received;
}

static void watch(struct connection *c, int operation, int is_waiting)
{
    struct epoll_event event = {.events = is_waiting ? EPOLLOUT : EPOLLIN, .data.ptr = c};
    c->is_waiting = is_waiting;
    check(epoll_ctl(poller, operation, c->socket, &event) == 0, "epoll_ctl");
}

static void drop(struct connection *c)
{
    close(c->socket);
    free(c->in);
    free(c);
}

static void turn(struct connection *c)
{
    if (!c->is_waiting) {
        ssize_t received = receive(c);
        if (received < 0 && errno == EAGAIN)
            return;
        if (received <= 0) {
            drop(c);
            return;
        }
    } else {
        int done = flush(c);
        if (done < 0)
            drop(c);
        if (done <= 0)
            return;
    }
    int done = serve(c);
    if (done < 0)
        drop(c);
    else if (c->is_waiting != !done)
        watch(c, EPOLL_CTL_MOD, !done);
}

static void welcome(int listener)
{
    int one = 1;
    struct connection *c = calloc(1, sizeof *c);
    check(c != NULL && (c->in = malloc(BUFFER)) != NULL, "malloc");
    c->socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    check(c->socket >= 0, "accept");
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    watch(c, EPOLL_CTL_ADD, 0);
}

static int start(int port)
{
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);  /* not paced, as kdist within a host */
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    check(listen(listener, 1024) == 0, "listen");
    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    check(epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
    return listener;
}

int main(int argc, char **argv)
{
    struct stat status;
    struct epoll_event events[EVENTS];
    if (argc != 4) {
        fprintf(stderr, "usage: server PORT FILE FETCH_BYTES\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);  /* sendfile has no MSG_NOSIGNAL */
    file = open(argv[2], O_RDWR | O_CREAT, 0644);
    check(file >= 0 && fstat(file, &status) == 0, argv[2]);
    file_size = status.st_size;
    fetch_bytes = atoll(argv[3]);
    int listener = start(atoi(argv[1]));
    puts("ready");
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == NULL)
                welcome(listener);
            else
                turn(events[i].data.ptr);
        }
    }
}
