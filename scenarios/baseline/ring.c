// The least an echo server does on io_uring, with several ways to receive, send and accept; for scenarios/rings/cpu:
//   cc -O2 -pthread -o ring scenarios/baseline/ring.c && ./ring WAY BUFFER_BYTES BUFFERS PORT [ACCEPT]
// Multishot receives into provided buffers. What has arrived in a batch is sent from where it lies, in one send at a
// time on each connection; a buffer is given back when no send needs it. No limits, no timeouts. WAY:
//   plain    a buffer for each receive
//   inc      receives fill a buffer one after the other (IOU_PBUF_RING_INC)
//   bundle   a receive fills as many buffers as it has bytes for (IORING_RECVSEND_BUNDLE)
//   zc       sends without a copy from registered memory (IORING_OP_SEND_ZC); buffers are kept until the notification
//   zc-auto  the same for sends of 16 KiB and more, until 64 notifications all report that the kernel has copied
// ACCEPT has two threads: `own`, each has a listener on the port (SO_REUSEPORT); `one`, the first accepts and hands
// every second connection over to the ring of the other (IORING_MSG_SEND_FD). Without it there is one thread.
// SIGTERM prints what was counted.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef IORING_RECVSEND_BUNDLE // headers older than Linux 6.12
#define IORING_RECVSEND_BUNDLE (1U << 4)
#define IORING_CQE_F_BUF_MORE (1U << 4)
#define IOU_PBUF_RING_INC 2
#endif

enum { MOST = 8192, ENTRIES = 1024, QUEUE = 1024, PIECES = 16, SENDS = 2 * MOST, ZC_LEAST = 16 << 10, ZC_TRIES = 64 };
enum kind { ACCEPT, RECEIVE, SEND, HAND_OVER, TAKE_OVER, OTHER };
enum way { PLAIN, INC, BUNDLE, ZC, ZC_AUTO };

struct piece { unsigned short id; unsigned at, len; };
// `first` and `count` are of the pieces that no send has taken yet.
struct connection { int is_armed, is_sending, is_over, is_touched; unsigned first, count; struct piece *queue; };
struct sending {
    unsigned fd, count, bytes, next;
    unsigned short ids[PIECES];
    struct iovec iov[PIECES];
    struct msghdr msg;
};
struct buffer { unsigned slot, filled, holders, is_full; };
struct counts { _Alignas(64) unsigned long accepts, receives, buffers, starved, sends, notified, copied; };

static enum way way;
static unsigned step, count, threads = 1, hands_over;
static int port, rings[2];
static struct counts all[2];
static pthread_barrier_t all_set_up;

static __thread struct counts *counts;
static __thread int ring;
static __thread struct io_uring_params params;
static __thread struct io_uring_sqe *sqes;
static __thread unsigned *sq_head, *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask, queued;
static __thread struct io_uring_cqe *cqes;
static __thread struct io_uring_buf_ring *ring_of_buffers;
static __thread struct buffer *buffers;
static __thread char *memory;
static __thread struct connection *connections;
static __thread struct sending *sendings;
static __thread unsigned free_sending, *touched, touched_count, *starved, starved_count, given_back;

static int enter(unsigned wait) {
    int n = syscall(SYS_io_uring_enter, ring, queued, wait, IORING_ENTER_GETEVENTS, NULL, 0);
    if (n > 0) queued -= n;
    return n;
}

static struct io_uring_sqe *request(int op, int fd, enum kind kind, unsigned index) {
    unsigned tail = *sq_tail;
    while (tail - __atomic_load_n(sq_head, __ATOMIC_ACQUIRE) == params.sq_entries) enter(0);
    struct io_uring_sqe *sqe = &sqes[tail & *sq_mask];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = op;
    sqe->fd = fd;
    sqe->user_data = (unsigned long)kind << 32 | index;
    sq_array[tail & *sq_mask] = tail & *sq_mask;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
    queued++;
    return sqe;
}

static void give_back(unsigned short id) {
    unsigned short tail = ring_of_buffers->tail;
    unsigned slot = tail & (count - 1);
    struct io_uring_buf *b = &ring_of_buffers->bufs[slot];
    b->addr = (unsigned long)(memory + (size_t)id * step);
    b->len = step;
    b->bid = id;
    buffers[id] = (struct buffer){.slot = slot};
    given_back++;
    __atomic_store_n(&ring_of_buffers->tail, tail + 1, __ATOMIC_RELEASE);
}

// The kernel puts no more into this buffer.
static void fill_up(unsigned short id) {
    buffers[id].is_full = 1;
    counts->buffers++;
    if (!buffers[id].holders) give_back(id);
}

static void let_go(unsigned short id) {
    struct buffer *b = &buffers[id];
    if (!--b->holders && b->is_full) give_back(id);
}

static void receive(unsigned fd) {
    struct io_uring_sqe *sqe = request(IORING_OP_RECV, fd, RECEIVE, fd);
    sqe->flags = IOSQE_BUFFER_SELECT | IOSQE_FIXED_FILE;
    sqe->ioprio = IORING_RECV_MULTISHOT | (way == BUNDLE ? IORING_RECVSEND_BUNDLE : 0);
    connections[fd].is_armed = 1;
}

static void touch(unsigned fd) {
    if (connections[fd].is_touched) return;
    connections[fd].is_touched = 1;
    touched[touched_count++] = fd;
}

static void append(struct connection *c, unsigned short id, unsigned bytes) {
    unsigned at = buffers[id].filled;
    struct piece *last = &c->queue[(c->first + c->count - 1) % QUEUE];
    buffers[id].filled += bytes;
    if (c->count && last->id == id && last->at + last->len == at) {
        last->len += bytes;
        return;
    }
    if (c->count == QUEUE) errx(1, "more than %d pieces wait for one connection", QUEUE);
    c->queue[(c->first + c->count++) % QUEUE] = (struct piece){id, at, bytes};
    buffers[id].holders++;
}

// A receive has filled the buffers from `id` on, in the order in which they were given back.
static void append_all(struct connection *c, unsigned short id, unsigned bytes, unsigned flags) {
    for (unsigned slot = buffers[id].slot;; slot++) {
        id = ring_of_buffers->bufs[slot & (count - 1)].bid;
        unsigned part = bytes < step ? bytes : step;
        append(c, id, part);
        bytes -= part;
        if (way != INC || !(flags & IORING_CQE_F_BUF_MORE)) fill_up(id);
        if (!bytes) return;
    }
}

static int avoids_copy(unsigned bytes) {
    if (way == ZC) return 1;
    int is_copied = counts->notified >= ZC_TRIES && counts->copied == counts->notified;
    return way == ZC_AUTO && bytes >= ZC_LEAST && !is_copied;
}

static void send_queued(unsigned fd) {
    struct connection *c = &connections[fd];
    unsigned index = free_sending;
    struct sending *s = &sendings[index];
    if (index == SENDS) errx(1, "more than %d sends", SENDS);
    free_sending = s->next;
    s->fd = fd;
    s->bytes = 0;
    for (s->count = 0; c->count && s->count < PIECES; c->count--) {
        struct piece *p = &c->queue[c->first++ % QUEUE];
        s->ids[s->count] = p->id;
        s->iov[s->count++] = (struct iovec){memory + (size_t)p->id * step + p->at, p->len};
        s->bytes += p->len;
    }
    s->msg = (struct msghdr){.msg_iov = s->iov, .msg_iovlen = s->count};
    int is_zc = avoids_copy(s->bytes), is_one = s->count == 1;
    int op = is_zc ? is_one ? IORING_OP_SEND_ZC : IORING_OP_SENDMSG_ZC : is_one ? IORING_OP_SEND : IORING_OP_SENDMSG;
    struct io_uring_sqe *sqe = request(op, fd, SEND, index);
    sqe->flags = IOSQE_FIXED_FILE;
    sqe->addr = is_one ? (unsigned long)s->iov->iov_base : (unsigned long)&s->msg;
    sqe->len = is_one ? s->bytes : 1;
    sqe->msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
    if (is_zc) sqe->ioprio = IORING_SEND_ZC_REPORT_USAGE | IORING_RECVSEND_FIXED_BUF;
    c->is_sending = 1;
    counts->sends++;
}

static void release(unsigned index) {
    struct sending *s = &sendings[index];
    for (unsigned k = 0; k < s->count; k++) let_go(s->ids[k]);
    s->next = free_sending;
    free_sending = index;
}

static void close_slot(unsigned fd) {
    request(IORING_OP_CLOSE, 0, OTHER, fd)->file_index = fd + 1;
}

static void go_on(unsigned fd) {
    struct connection *c = &connections[fd];
    c->is_touched = 0;
    if (c->is_sending) return;
    if (c->count) send_queued(fd);
    else if (c->is_over && !c->is_armed) close_slot(fd);
}

static void serve(unsigned fd) {
    struct connection *c = &connections[fd];
    *c = (struct connection){.queue = c->queue, .is_touched = c->is_touched};
    if (!c->queue && !(c->queue = malloc(QUEUE * sizeof *c->queue))) err(1, "malloc");
    counts->accepts++;
    receive(fd);
}

static void accepted(int fd) {
    if (fd < 0) errx(1, "accept: %s", strerror(-fd));
    static unsigned turn;
    if (!hands_over || turn++ % 2) {
        serve(fd);
        return;
    }
    struct io_uring_sqe *sqe = request(IORING_OP_MSG_RING, rings[1], HAND_OVER, fd);
    sqe->addr = IORING_MSG_SEND_FD;
    sqe->addr3 = fd;
    sqe->off = (unsigned long)TAKE_OVER << 32;
    sqe->file_index = IORING_FILE_INDEX_ALLOC;
}

static void received(unsigned fd, int result, unsigned flags) {
    struct connection *c = &connections[fd];
    unsigned short id = flags >> IORING_CQE_BUFFER_SHIFT;
    counts->receives++;
    if (result > 0) append_all(c, id, result, flags);
    else if (flags & IORING_CQE_F_BUFFER && !(flags & IORING_CQE_F_BUF_MORE)) fill_up(id);
    if (!(flags & IORING_CQE_F_MORE)) {
        c->is_armed = 0;
        if (result == -ENOBUFS) {
            counts->starved++;
            starved[starved_count++] = fd;
        } else if (result > 0) receive(fd);
        else c->is_over = 1;
    }
    touch(fd);
}

static void sent(unsigned index, int result, unsigned flags) {
    struct sending *s = &sendings[index];
    struct connection *c = &connections[s->fd];
    if (flags & IORING_CQE_F_NOTIF) {
        counts->notified++;
        counts->copied += !!((unsigned)result & IORING_NOTIF_USAGE_ZC_COPIED);
        release(index);
        return;
    }
    if (result == -EINVAL) errx(1, "this kernel has no such send");
    c->is_sending = 0;
    if (result != (int)s->bytes) { // the peer is gone
        for (; c->count; c->count--) let_go(c->queue[c->first++ % QUEUE].id);
        request(IORING_OP_SHUTDOWN, s->fd, OTHER, s->fd)->flags = IOSQE_FIXED_FILE;
    }
    touch(s->fd);
    if (!(flags & IORING_CQE_F_MORE)) release(index);
}

static void *map(size_t bytes, int fd, off_t at) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, at);
    if (p == MAP_FAILED) err(1, "mmap");
    return p;
}

static void enroll(int what, const void *with, unsigned n) {
    if (syscall(SYS_io_uring_register, ring, what, with, n) < 0) err(1, "io_uring_register %d", what);
}

static void set_up(void) {
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE;
    params.cq_entries = 2 * MOST;
    if ((ring = syscall(SYS_io_uring_setup, ENTRIES, &params)) < 0) err(1, "io_uring_setup");
    char *sq = map(params.sq_off.array + params.sq_entries * 4, ring, IORING_OFF_SQ_RING);
    char *cq = map(params.cq_off.cqes + params.cq_entries * sizeof *cqes, ring, IORING_OFF_CQ_RING);
    sqes = map(params.sq_entries * sizeof *sqes, ring, IORING_OFF_SQES);
    sq_head = (void *)(sq + params.sq_off.head);
    sq_tail = (void *)(sq + params.sq_off.tail);
    sq_mask = (void *)(sq + params.sq_off.ring_mask);
    sq_array = (void *)(sq + params.sq_off.array);
    cq_head = (void *)(cq + params.cq_off.head);
    cq_tail = (void *)(cq + params.cq_off.tail);
    cq_mask = (void *)(cq + params.cq_off.ring_mask);
    cqes = (void *)(cq + params.cq_off.cqes);
    struct io_uring_rsrc_register files = {.nr = MOST, .flags = IORING_RSRC_REGISTER_SPARSE};
    enroll(IORING_REGISTER_FILES2, &files, sizeof files);

    connections = map(MOST * sizeof *connections, -1, 0);
    touched = map(MOST * sizeof *touched, -1, 0);
    starved = map(MOST * sizeof *starved, -1, 0);
    sendings = map((SENDS + 1) * sizeof *sendings, -1, 0);
    for (unsigned k = 0; k < SENDS; k++) sendings[k].next = k + 1;
    memory = map((size_t)count * step, -1, 0);
    buffers = map(count * sizeof *buffers, -1, 0);
    ring_of_buffers = map(count * sizeof(struct io_uring_buf), -1, 0);
    struct io_uring_buf_reg reg = {.ring_addr = (unsigned long)ring_of_buffers, .ring_entries = count};
    *(unsigned short *)((char *)&reg + 14) = way == INC ? IOU_PBUF_RING_INC : 0; // flags: `pad` in older headers
    enroll(IORING_REGISTER_PBUF_RING, &reg, 1);
    for (unsigned k = 0; k < count; k++) give_back(k);
    struct iovec whole = {memory, (size_t)count * step};
    if (way == ZC || way == ZC_AUTO) enroll(IORING_REGISTER_BUFFERS, &whole, 1);
}

static void listen_here(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (threads > 1 && !hands_over) setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 4096)) err(1, "listen");
    struct io_uring_sqe *sqe = request(IORING_OP_ACCEPT, listener, ACCEPT, 0);
    sqe->ioprio = IORING_ACCEPT_MULTISHOT;
    sqe->file_index = IORING_FILE_INDEX_ALLOC;
}

static void complete(struct io_uring_cqe *cqe) {
    unsigned index = cqe->user_data;
    switch ((enum kind)(cqe->user_data >> 32)) {
    case ACCEPT: accepted(cqe->res); break;
    case RECEIVE: received(index, cqe->res, cqe->flags); break;
    case SEND: sent(index, cqe->res, cqe->flags); break;
    case HAND_OVER:
        if (cqe->res < 0) errx(1, "hand over: %s", strerror(-cqe->res));
        close_slot(index);
        break;
    case TAKE_OVER: serve(cqe->res); break;
    case OTHER: break;
    }
}

static void *run(void *number) {
    unsigned me = (unsigned long)number;
    counts = &all[me];
    set_up();
    rings[me] = ring;
    pthread_barrier_wait(&all_set_up);
    if (!me || !hands_over) listen_here();
    for (;;) {
        if (enter(1) < 0 && errno != EINTR && errno != EBUSY) err(1, "enter");
        unsigned head = *cq_head, tail = __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE);
        for (; head != tail; head++) complete(&cqes[head & *cq_mask]);
        __atomic_store_n(cq_head, head, __ATOMIC_RELEASE);
        for (unsigned k = 0; k < touched_count; k++) go_on(touched[k]);
        touched_count = 0;
        if (!given_back || !starved_count) continue;
        given_back = 0;
        for (; starved_count; starved_count--) receive(starved[starved_count - 1]);
    }
}

static void report(int signal) {
    (void)signal;
    for (unsigned k = 0; k < threads; k++)
        printf("accepts=%lu receives=%lu buffers=%lu starved=%lu sends=%lu notified=%lu copied=%lu\n", all[k].accepts,
               all[k].receives, all[k].buffers, all[k].starved, all[k].sends, all[k].notified, all[k].copied);
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv) {
    static const char *const ways[] = {"plain", "inc", "bundle", "zc", "zc-auto"};
    if (argc < 5) errx(2, "usage: ring plain|inc|bundle|zc|zc-auto BUFFER_BYTES BUFFERS PORT [own|one]");
    while (strcmp(ways[way], argv[1]))
        if (++way > ZC_AUTO) errx(2, "%s: no such way", argv[1]);
    step = atoi(argv[2]);
    count = atoi(argv[3]);
    port = atoi(argv[4]);
    if (!step || !count || count > 32768 || count & (count - 1)) errx(2, "BUFFERS: a power of two, at most 32768");
    if (argc > 5) {
        threads = 2;
        hands_over = !strcmp(argv[5], "one");
        if (!hands_over && strcmp(argv[5], "own")) errx(2, "%s: own or one", argv[5]);
    }
    signal(SIGTERM, report);
    pthread_barrier_init(&all_set_up, NULL, threads);
    pthread_t other;
    if (threads > 1 && pthread_create(&other, NULL, run, (void *)1)) errx(1, "a thread");
    run((void *)0);
}
