// The least a server does that sends a file in one of the ways that Linux has; for `scenarios/files/cpu --also`:
//   cc -O2 -o file scenarios/baseline/file.c -luring && ./file WAY STEP_KIB PORT FILE
// ways: sendfile splice read mmap (epoll); uring-poll (the ring reports readiness, then sendfile) uring-splice uring-read
// Every request, which has to come in one piece, is answered with FILE; connections are kept. Errors end the program.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 1024, REQUEST = 4096 };

struct connection {
    int fd, pipe[2];
    long at, piped;   // bytes of the file that were sent, that lie in the pipe
    long ready;       // bytes of `buffer` that are to be sent
    char *buffer;
};

static int file;
static long length, step, head_length;
static char *map, head[256];
static struct connection connections[MOST];
static struct io_uring ring;

static long least(long a, long b) { return a < b ? a : b; }

// --- ways with epoll: each sends at most `step` bytes, and returns what the kernel took ---

static long by_sendfile(struct connection *c) {
    off_t at = c->at;
    return sendfile(c->fd, file, &at, least(step, length - c->at));
}

static long by_splice(struct connection *c) {
    loff_t at = c->at;
    if (!c->piped) {
        c->piped = splice(file, &at, c->pipe[1], NULL, least(step, length - c->at), SPLICE_F_MOVE);
        if (c->piped <= 0) err(1, "splice from the file");
    }
    int more = c->at + c->piped < length ? SPLICE_F_MORE : 0;
    long n = splice(c->pipe[0], NULL, c->fd, NULL, c->piped, SPLICE_F_MOVE | SPLICE_F_NONBLOCK | more);
    if (n > 0) c->piped -= n;
    return n;
}

static long by_read(struct connection *c) {
    long n = pread(file, c->buffer, least(step, length - c->at), c->at);
    return send(c->fd, c->buffer, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static long by_map(struct connection *c) {
    return send(c->fd, map + c->at, least(step, length - c->at), MSG_DONTWAIT | MSG_NOSIGNAL);
}

static struct connection *begin(int fd) {
    if (fd < 0 || fd >= MOST) errx(1, "accept: %d", fd);
    struct connection *c = &connections[fd];
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!c->buffer) {
        if (!(c->buffer = malloc(step + REQUEST))) err(1, "memory");
        if (pipe(c->pipe) || fcntl(c->pipe[0], F_SETPIPE_SZ, (int)step) < step) err(1, "a pipe of %ld bytes", step);
    }
    c->fd = fd;
    c->at = length;
    return c;
}

static void answer(struct connection *c) {
    c->at = 0;
    if (send(c->fd, head, head_length, MSG_MORE | MSG_NOSIGNAL) != head_length) err(1, "send a head");
}

static void serve_epoll(int listener, long (*way)(struct connection *)) {
    int poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(poller, events, 64, -1);
        for (int k = 0; k < n; k++) {
            struct connection *c = events[k].data.ptr;
            if (!c) {
                c = begin(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
                event = (struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
                epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
                continue;
            }
            if (c->at == length) {
                char request[REQUEST];
                long got = recv(c->fd, request, sizeof request, 0);
                if (got < 0 && errno == EAGAIN) continue;
                if (got <= 0) { close(c->fd); continue; }
                answer(c);
            }
            while (c->at < length) {
                long sent = way(c);
                if (sent < 0 && errno == EAGAIN) break;
                if (sent <= 0) err(1, "send");
                c->at += sent;
            }
        }
    }
}

// --- ways with io_uring ---

enum { CAME, ASKED, READY, FILLED, READ, SENT };

static struct io_uring_sqe *entry(void) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (sqe) return sqe;
    io_uring_submit(&ring);
    return io_uring_get_sqe(&ring);
}

static void mark(struct io_uring_sqe *sqe, struct connection *c, int what) {
    sqe->user_data = (unsigned long)(c - connections) << 8 | what;
}

static void ask(struct connection *c) {
    struct io_uring_sqe *sqe = entry();
    io_uring_prep_recv(sqe, c->fd, c->buffer, REQUEST, 0);
    mark(sqe, c, ASKED);
}

static void go_on(struct connection *c, const char *way) {
    if (c->at == length) return ask(c);
    struct io_uring_sqe *sqe;
    if (!strcmp(way, "uring-poll")) {
        sqe = entry();
        io_uring_prep_poll_add(sqe, c->fd, POLLOUT);
        mark(sqe, c, READY);
    } else if (!strcmp(way, "uring-splice")) {
        if (!c->piped) {
            c->piped = least(step, length - c->at);
            sqe = entry();
            io_uring_prep_splice(sqe, file, c->at, c->pipe[1], -1, c->piped, SPLICE_F_MOVE);
            mark(sqe, c, FILLED);
            io_uring_sqe_set_flags(sqe, IOSQE_IO_LINK);
        }
        sqe = entry();
        io_uring_prep_splice(sqe, c->pipe[0], -1, c->fd, -1, c->piped, SPLICE_F_MOVE);
        mark(sqe, c, SENT);
    } else if (c->ready) {
        sqe = entry();
        io_uring_prep_send(sqe, c->fd, c->buffer, c->ready, MSG_WAITALL | MSG_NOSIGNAL);
        mark(sqe, c, SENT);
    } else {
        sqe = entry();
        io_uring_prep_read(sqe, file, c->buffer, least(step, length - c->at), c->at);
        mark(sqe, c, READ);
    }
}

static void sent(struct connection *c, long n) {
    if (n > 0) c->at += n;
    else if (n && errno != EAGAIN) err(1, "send");
}

// Whether the connection goes on.
static int completed(struct connection *c, int what, int result, const char *way) {
    switch (what) {
    case ASKED:
        if (result <= 0) { close(c->fd); return 0; }
        answer(c);
        if (!strcmp(way, "uring-poll")) sent(c, by_sendfile(c));
        return 1;
    case READY: sent(c, by_sendfile(c)); return 1;
    case FILLED:
        if (result != c->piped) errx(1, "a short splice from the file: %d of %ld", result, c->piped);
        return 0;
    case READ: c->ready = result; return 1;
    default:
        if (result <= 0) errx(1, "send: %s", strerror(-result));
        c->at += result;
        c->piped -= c->piped ? result : 0;
        c->ready = 0;
        return 1;
    }
}

static void serve_uring(int listener, const char *way) {
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    if (io_uring_queue_init_params(4096, &ring, &params)) errx(1, "io_uring is not to be had");
    struct io_uring_sqe *sqe = entry();
    io_uring_prep_multishot_accept(sqe, listener, NULL, NULL, 0);
    sqe->user_data = CAME;
    for (;;) {
        io_uring_submit_and_wait(&ring, 1);
        struct io_uring_cqe *cqe;
        unsigned slot, seen = 0;
        io_uring_for_each_cqe(&ring, slot, cqe) {
            seen++;
            int what = cqe->user_data & 255;
            struct connection *c = &connections[cqe->user_data >> 8];
            if (what == CAME) ask(begin(cqe->res));
            else if (completed(c, what, cqe->res, way)) go_on(c, way);
        }
        io_uring_cq_advance(&ring, seen);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) errx(2, "usage: file WAY STEP_KIB PORT FILE");
    const char *way = argv[1];
    step = atol(argv[2]) << 10;
    if ((file = open(argv[4], O_RDONLY)) < 0) err(1, "%s", argv[4]);
    length = lseek(file, 0, SEEK_END);
    if (step < 1 || length < 1) errx(2, "a step and a file have at least a byte");
    map = mmap(NULL, length, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (map == MAP_FAILED) err(1, "mmap");
    head_length = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %ld\r\n\r\n", length);

    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, MOST)) err(1, "listen");

    if (!strcmp(way, "sendfile")) serve_epoll(listener, by_sendfile);
    else if (!strcmp(way, "splice")) serve_epoll(listener, by_splice);
    else if (!strcmp(way, "read")) serve_epoll(listener, by_read);
    else if (!strcmp(way, "mmap")) serve_epoll(listener, by_map);
    else if (!strncmp(way, "uring-", 6)) serve_uring(listener, way);
    else errx(2, "no such way: %s", way);
}
