// The least a TCP proxy does, with bytes that pass user space or a pipe; for `scenarios/apps/cpu --parts splice`:
//   cc -O2 -o proxy scenarios/baseline/proxy.c && ./proxy WAY STEP_KIB PORT UPSTREAM_PORT
// WAY is copy (recv and send, one buffer of STEP_KIB) or splice (a pipe of STEP_KIB, taken from a stack of them while
// bytes lie in it). One thread, epoll, level-triggered; no limits, no timeouts. An end of either side ends both.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 4096 };

struct pipe { int out, in; struct pipe *next; };

// One direction's source, and what came from it that its peer has not taken.
struct half {
    int fd;
    unsigned watched;
    struct half *peer;
    long held, at;       // bytes that wait; where they begin in `kept`
    char *kept;          // copy
    struct pipe *pipe;   // splice
};

static int poller, splices;
static long step;
static char *buffer;
static struct pipe *spare;
static struct half halves[MOST];

static struct pipe *take_pipe(void) {
    struct pipe *p = spare;
    if (p) {
        spare = p->next;
        return p;
    }
    int ends[2];
    if (!(p = malloc(sizeof *p)) || pipe2(ends, O_NONBLOCK)) err(1, "a pipe");
    if (fcntl(ends[0], F_SETPIPE_SZ, (int)step) < step) err(1, "a pipe of %ld bytes", step);
    p->out = ends[0];
    p->in = ends[1];
    return p;
}

static void give_pipe(struct pipe *p) {
    p->next = spare;
    spare = p;
}

static void watch(struct half *h) {
    // It receives while its peer has taken everything, and waits for room while bytes of its peer's lie here.
    unsigned wanted = (h->held ? 0 : EPOLLIN) | (h->peer->held ? EPOLLOUT : 0);
    if (wanted == h->watched) return;
    struct epoll_event event = {.events = wanted, .data.ptr = h};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, h->fd, &event)) err(1, "epoll_ctl");
    h->watched = wanted;
}

// What `h` holds goes on to its peer. Whether the connection goes on.
static int pass_on(struct half *h) {
    while (h->held) {
        long n = splices ? splice(h->pipe->out, NULL, h->peer->fd, NULL, h->held, SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
                         : send(h->peer->fd, h->kept + h->at, h->held, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN;
        h->held -= n;
        h->at += n;
    }
    if (splices) {
        give_pipe(h->pipe);
        h->pipe = NULL;
    } else {
        free(h->kept);
        h->kept = NULL;
    }
    return 1;
}

// One receive, and its bytes to the peer. Whether the connection goes on.
static int receive(struct half *h) {
    if (splices) {
        h->pipe = take_pipe();
        long n = splice(h->fd, NULL, h->pipe->in, NULL, step, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n <= 0) {
            give_pipe(h->pipe);
            h->pipe = NULL;
            return n < 0 && errno == EAGAIN;
        }
        h->held = n;
        return pass_on(h);
    }
    long n = recv(h->fd, buffer, step, MSG_DONTWAIT);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    long sent = send(h->peer->fd, buffer, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN) return 0;
        sent = 0;
    }
    if (sent < n) {
        if (!(h->kept = malloc(n - sent))) err(1, "memory");
        memcpy(h->kept, buffer + sent, n - sent);
        h->held = n - sent;
        h->at = 0;
    }
    return 1;
}

static struct half *set_up(int fd) {
    if (fd < 0 || fd >= MOST) err(1, "a connection: %d", fd);
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    halves[fd] = (struct half){.fd = fd, .watched = EPOLLIN};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &halves[fd]};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) err(1, "epoll_ctl");
    return &halves[fd];
}

static void link_halves(int accepted, int dialled) {
    struct half *near = set_up(accepted), *far = set_up(dialled);
    near->peer = far;
    far->peer = near;
}

static void end(struct half *h) {
    struct half *both[] = {h, h->peer};
    for (int k = 0; k < 2; k++) {
        struct half *one = both[k];
        if (one->pipe) { // bytes lie in it
            close(one->pipe->in);
            close(one->pipe->out);
            free(one->pipe);
        }
        free(one->kept);
        close(one->fd);
        one->fd = -1;
    }
}

int main(int argc, char **argv) {
    if (argc != 5) errx(2, "usage: proxy copy|splice STEP_KIB PORT UPSTREAM_PORT");
    splices = !strcmp(argv[1], "splice");
    if (!splices && strcmp(argv[1], "copy")) errx(2, "no such way: %s", argv[1]);
    step = atol(argv[2]) << 10;
    if (step < 1 || !(buffer = malloc(step))) errx(2, "no such step");
    signal(SIGPIPE, SIG_IGN);

    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons(atoi(argv[3]));
    struct sockaddr_in to = at;
    to.sin_port = htons(atoi(argv[4]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, MOST)) err(1, "listen");

    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(poller, events, 64, -1);
        for (int k = 0; k < n; k++) {
            struct half *h = events[k].data.ptr;
            if (!h) {
                int accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                int dialled = socket(AF_INET, SOCK_STREAM, 0); // on this host connect returns at once
                if (connect(dialled, (void *)&to, sizeof to)) err(1, "connect");
                link_halves(accepted, dialled);
                continue;
            }
            if (h->fd < 0) continue; // ended by an earlier event of this batch
            int goes_on = !(events[k].events & (EPOLLHUP | EPOLLERR));
            if (goes_on && events[k].events & EPOLLOUT && h->peer->held) goes_on = pass_on(h->peer);
            if (goes_on && events[k].events & EPOLLIN && !h->held) goes_on = receive(h);
            if (!goes_on) {
                end(h);
                continue;
            }
            watch(h);
            watch(h->peer);
        }
    }
}
