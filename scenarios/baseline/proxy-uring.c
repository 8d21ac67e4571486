// The least a TCP proxy does on io_uring; for `scenarios/apps/cpu --parts splice`:
//   cc -O2 -o proxy-uring scenarios/baseline/proxy-uring.c && ./proxy-uring STEP_KIB BUFFERS PORT UPSTREAM_PORT
// Multishot receives into provided buffers; each buffer is sent to the peer from where it lies, and given back when the
// send has completed. One thread, one io_uring_enter for each batch. No limits, no timeouts. An end of either side ends
// both.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 4096, RECEIVE = 1, SEND = 2, ACCEPT = 3, ENTRIES = 1024 };

struct piece { unsigned short id; unsigned at, len; };
// One direction's source, and the buffers that came from it and that its peer has not taken.
struct half { int fd, peer, armed, sending, over; unsigned first, count; struct piece queue[256]; };

static struct half halves[MOST];
static int ring, listener;
static struct io_uring_params params;
static struct io_uring_sqe *sqes;
static unsigned *sq_head, *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask, queued;
static struct io_uring_cqe *cqes;
static struct io_uring_buf_ring *buffers;
static char *memory;
static unsigned step, count;

static int enter(unsigned wait) {
    int n = syscall(SYS_io_uring_enter, ring, queued, wait, IORING_ENTER_GETEVENTS, NULL, 0);
    if (n > 0) queued -= n;
    return n;
}

static struct io_uring_sqe *request(int op, int fd, unsigned long kind) {
    unsigned tail = *sq_tail;
    while (tail - __atomic_load_n(sq_head, __ATOMIC_ACQUIRE) == params.sq_entries) enter(0);
    struct io_uring_sqe *sqe = &sqes[tail & *sq_mask];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = op;
    sqe->fd = fd;
    sqe->user_data = kind << 32 | (unsigned)fd;
    sq_array[tail & *sq_mask] = tail & *sq_mask;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
    queued++;
    return sqe;
}

static void give_back(unsigned short id) {
    unsigned short tail = buffers->tail;
    struct io_uring_buf *b = &buffers->bufs[tail & (count - 1)];
    b->addr = (unsigned long)(memory + (size_t)id * step);
    b->len = step;
    b->bid = id;
    __atomic_store_n(&buffers->tail, tail + 1, __ATOMIC_RELEASE);
}

static void receive(int fd) {
    struct io_uring_sqe *sqe = request(IORING_OP_RECV, fd, RECEIVE);
    sqe->flags = IOSQE_BUFFER_SELECT | IOSQE_FIXED_FILE;
    sqe->ioprio = IORING_RECV_MULTISHOT;
    halves[fd].armed = 1;
}

static void pass_on(struct half *h) {
    if (h->sending || !h->count) return;
    struct piece *p = &h->queue[h->first % 256];
    struct io_uring_sqe *sqe = request(IORING_OP_SEND, h->peer, SEND);
    sqe->flags = IOSQE_FIXED_FILE;
    sqe->addr = (unsigned long)(memory + (size_t)p->id * step + p->at);
    sqe->len = p->len - p->at;
    sqe->msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
    h->sending = 1;
}

static void end(struct half *h) {
    if (h->over) return;
    h->over = halves[h->peer].over = 1;
    shutdown(h->fd, SHUT_RDWR);
    shutdown(h->peer, SHUT_RDWR);
}

static void set_up(int fd, int peer) {
    int one = 1, at = fd;
    if (fd < 0 || fd >= MOST) err(1, "a connection: %d", fd);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct io_uring_files_update update = {.offset = at, .fds = (unsigned long)&fd};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES_UPDATE, &update, 1) != 1) err(1, "a slot");
    memset(&halves[fd], 0, sizeof halves[fd]);
    halves[fd].fd = fd;
    halves[fd].peer = peer;
    receive(fd);
}

static void *map(size_t bytes, off_t at) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, at ? MAP_SHARED | MAP_POPULATE : MAP_SHARED, ring, at);
    if (p == MAP_FAILED) err(1, "mmap");
    return p;
}

int main(int argc, char **argv) {
    if (argc != 5) errx(2, "usage: proxy-uring STEP_KIB BUFFERS PORT UPSTREAM_PORT");
    step = atoi(argv[1]) << 10;
    count = atoi(argv[2]);
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons(atoi(argv[3]));
    struct sockaddr_in to = at;
    to.sin_port = htons(atoi(argv[4]));
    int one = 1;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, MOST)) err(1, "listen");

    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE;
    params.cq_entries = 4096;
    if ((ring = syscall(SYS_io_uring_setup, ENTRIES, &params)) < 0) err(1, "io_uring_setup");
    char *sq = map(params.sq_off.array + params.sq_entries * 4, IORING_OFF_SQ_RING);
    char *cq = map(params.cq_off.cqes + params.cq_entries * sizeof *cqes, IORING_OFF_CQ_RING);
    sqes = map(params.sq_entries * sizeof *sqes, IORING_OFF_SQES);
    sq_head = (void *)(sq + params.sq_off.head);
    sq_tail = (void *)(sq + params.sq_off.tail);
    sq_mask = (void *)(sq + params.sq_off.ring_mask);
    sq_array = (void *)(sq + params.sq_off.array);
    cq_head = (void *)(cq + params.cq_off.head);
    cq_tail = (void *)(cq + params.cq_off.tail);
    cq_mask = (void *)(cq + params.cq_off.ring_mask);
    cqes = (void *)(cq + params.cq_off.cqes);
    struct io_uring_rsrc_register files = {.nr = MOST, .flags = IORING_RSRC_REGISTER_SPARSE};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES2, &files, sizeof files)) err(1, "files");
    buffers = mmap(NULL, count * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory = mmap(NULL, (size_t)count * step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct io_uring_buf_reg reg = {.ring_addr = (unsigned long)buffers, .ring_entries = count};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_PBUF_RING, &reg, 1)) err(1, "buffers");
    for (unsigned k = 0; k < count; k++) give_back(k);

    request(IORING_OP_ACCEPT, listener, ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
    for (;;) {
        if (enter(1) < 0 && errno != EINTR && errno != EBUSY) err(1, "enter");
        unsigned head = *cq_head, tail = __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE);
        for (; head != tail; head++) {
            struct io_uring_cqe *cqe = &cqes[head & *cq_mask];
            int kind = cqe->user_data >> 32, fd = (unsigned)cqe->user_data, result = cqe->res;
            struct half *h = &halves[fd];
            if (kind == ACCEPT) {
                if (result < 0) errx(1, "accept: %d", result);
                int dialled = socket(AF_INET, SOCK_STREAM, 0); // on this host connect returns at once
                if (connect(dialled, (void *)&to, sizeof to)) err(1, "connect");
                set_up(result, dialled);
                set_up(dialled, result);
            } else if (kind == RECEIVE) {
                if (cqe->flags & IORING_CQE_F_BUFFER) {
                    unsigned short id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
                    if (result > 0 && !h->over && h->count < 256) {
                        h->queue[(h->first + h->count++) % 256] = (struct piece){id, 0, result};
                        pass_on(h);
                    } else give_back(id);
                }
                if (result == 0 || (result < 0 && result != -ENOBUFS)) end(h);
                else if (!(cqe->flags & IORING_CQE_F_MORE)) receive(fd);
            } else {
                struct half *from = &halves[h->peer];
                struct piece *p = &from->queue[from->first % 256];
                from->sending = 0;
                if (result > 0) p->at += result; else end(h);
                if (result <= 0 || p->at == p->len) {
                    give_back(p->id);
                    from->first++;
                    from->count--;
                }
                pass_on(from);
            }
        }
        __atomic_store_n(cq_head, head, __ATOMIC_RELEASE);
    }
}
