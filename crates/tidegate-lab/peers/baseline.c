/* The baseline: the least an epoll server can do for a 4 KiB answer.
 *
 * One thread, level-triggered epoll, no parser, no policy, no timeout: every receive is taken for one whole request and
 * answered with the same prepared bytes (head and body in one send). With -c each answer closes the connection, and the
 * listener defers accepts until there is data. It is not a server anybody should run; it is what tidegate is measured against.
 *
 * cc -O2 -o baseline baseline.c && ./baseline PORT [-c]
 *
 * -DSLOWER_NS=200 makes each answer so many nanoseconds dearer (scenarios/ab/alarms).
 * -DPAUSE_US=200 sleeps so many microseconds after each batch: the naive latency budget (scenarios/coalescing/cpu).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BODY = 4096, EVENTS = 256 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* Uses the processor for SLOWER_NS. */
static void be_slower(void) {
#ifdef SLOWER_NS
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < SLOWER_NS);
#endif
}

/* Lets events gather for PAUSE_US. */
static void let_gather(void) {
#ifdef PAUSE_US
    struct timespec pause = {.tv_nsec = PAUSE_US * 1000L};
    nanosleep(&pause, NULL);
#endif
}

/* Sends everything; where the socket has no room for the rest, everybody waits until it has. 0 if the peer is gone. */
static int send_all(int fd, const char *from, size_t length) {
    for (;;) {
        ssize_t sent = send(fd, from, length, MSG_NOSIGNAL);
        if (sent == (ssize_t)length) return 1;
        if (sent < 0 && errno != EAGAIN) return 0;
        if (sent > 0) from += sent, length -= (size_t)sent;
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        if (poll(&room, 1, 1000) != 1) return 0;
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: baseline PORT [-c]\n");
        return 2;
    }
    int close_each = argc > 2 && !strcmp(argv[2], "-c");
    static char answer[BODY + 256];
    int head = snprintf(answer, 256,
                        "HTTP/1.1 200 OK\r\nServer: baseline\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
                        "Content-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n%s\r\n",
                        BODY, close_each ? "Connection: close\r\n" : "");
    memset(answer + head, 'x', BODY);
    size_t length = (size_t)head + BODY;

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0) die("socket");
    int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (close_each) setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &on, sizeof on);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 4096)) die("listen");
    socklen_t size = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &size);
    printf("listening on http://127.0.0.1:%d/\n", ntohs(at.sin_port));
    fflush(stdout);

    int epoll = epoll_create1(0);
    if (epoll < 0) die("epoll_create1");
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN, .data.fd = listener};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event)) die("epoll_ctl");
    static char request[65536];
    prctl(PR_SET_TIMERSLACK, 1000UL); /* sleeps end when they should */
    for (;;) {
        int n = epoll_wait(epoll, events, EVENTS, -1);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int new = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (new < 0) continue;
                event = (struct epoll_event){.events = EPOLLIN, .data.fd = new};
                if (epoll_ctl(epoll, EPOLL_CTL_ADD, new, &event)) close(new);
                continue;
            }
            ssize_t got = recv(fd, request, sizeof request, 0);
            if (got < 0 && errno == EAGAIN) continue;
            be_slower();
            if (got <= 0 || !send_all(fd, answer, length) || close_each) close(fd);
        }
        let_gather();
    }
}
