// Ways to send datagrams of 1,400 bytes over loopback as fast as one processor can: what each costs without a generator around it.
//
//   cc -O2 -o ways scenarios/udp/ways.c
//   tidegate serve udp sink --listen 127.0.0.1:7000 --path gso --threads 1 --cpus 0 --stats &
//   taskset -c 1 ./ways 127.0.0.1 7000 WAY SECONDS     prints datagrams a second that the kernel took
//
// WAY  plain       send(2), one datagram a call
//      gso:N       sendmsg(2) with UDP_SEGMENT (udp(7)), 46 datagrams each, out of N buffers of 64 KiB in turn
//      mmsg:N      the same, N of them with one sendmmsg(2)
//      zerocopy    gso:1 with MSG_ZEROCOPY (Linux, Documentation/networking/msg_zerocopy.rst); also prints how many were copied all the same
//      sendfile    sendfile(2) of 46 datagrams out of a memfd: their pages are lent to the socket and not copied
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 1400, SEGMENTS = 46, MOST = 64 };
static char buffers[MOST][SEGMENTS * BYTES];
static union { char room[CMSG_SPACE(sizeof(unsigned short))]; struct cmsghdr align; } control;
static struct iovec slices[MOST];
static struct mmsghdr messages[MOST];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void prepare(void) {
    struct cmsghdr *head = &control.align;
    unsigned short segment = BYTES;
    head->cmsg_level = SOL_UDP, head->cmsg_type = UDP_SEGMENT, head->cmsg_len = CMSG_LEN(sizeof segment);
    memcpy(CMSG_DATA(head), &segment, sizeof segment);
    for (int i = 0; i < MOST; i++) {
        memset(buffers[i], 'x', sizeof buffers[i]);
        slices[i] = (struct iovec){buffers[i], sizeof buffers[i]};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &slices[i], .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    }
}

// Takes what the error queue says of sends without a copy; counts those that were copied.
static long copied(int s) {
    long count = 0;
    for (;;) {
        char room[256];
        struct msghdr m = {.msg_control = room, .msg_controllen = sizeof room};
        if (recvmsg(s, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return count;
        struct sock_extended_err *e = (void *)CMSG_DATA(CMSG_FIRSTHDR(&m));
        if (e->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) count += e->ee_data - e->ee_info + 1;
    }
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "usage: ways ADDRESS PORT WAY SECONDS\n"), 2;
    const char *way = argv[3];
    int n = strchr(way, ':') ? atoi(strchr(way, ':') + 1) : 1;
    if (n < 1 || n > MOST) return fprintf(stderr, "1 to %d buffers\n", MOST), 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &to.sin_addr);
    int s = socket(AF_INET, SOCK_DGRAM, 0), file = -1, segment = BYTES, on = 1;
    if (connect(s, (void *)&to, sizeof to)) fail("connect");
    prepare();
    if (!strcmp(way, "zerocopy") && setsockopt(s, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on)) fail("SO_ZEROCOPY");
    if (!strcmp(way, "sendfile")) {
        file = memfd_create("ways", 0);
        if (write(file, buffers, sizeof buffers) != sizeof buffers) fail("memfd");
        if (setsockopt(s, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment)) fail("UDP_SEGMENT");
    }
    long sent = 0, in_vain = 0, at = 0;
    double begun = now(), end = begun + atof(argv[4]);
    while (now() < end) {
        for (int i = 0; i < 16; i++, at = (at + 1) % n) {
            long bytes;
            if (!strcmp(way, "plain")) bytes = send(s, buffers[0], BYTES, 0), sent += bytes > 0;
            else if (!strncmp(way, "mmsg", 4)) bytes = sendmmsg(s, messages, n, 0), sent += bytes > 0 ? bytes * SEGMENTS : 0;
            else if (file >= 0) {
                off_t from = at * sizeof buffers[0];
                bytes = sendfile(s, file, &from, sizeof buffers[0]), sent += bytes > 0 ? bytes / BYTES : 0;
            } else {
                bytes = sendmsg(s, &messages[at].msg_hdr, strcmp(way, "zerocopy") ? 0 : MSG_ZEROCOPY), sent += bytes > 0 ? SEGMENTS : 0;
            }
            if (bytes < 0 && errno != ENOBUFS && errno != ECONNREFUSED) fail(way);
        }
        if (!strcmp(way, "zerocopy")) in_vain += copied(s);
    }
    printf("%-10s %12.0f/s", way, sent / (now() - begun));
    if (!strcmp(way, "zerocopy")) printf("   %ld of %ld sends were copied all the same", in_vain, sent / SEGMENTS);
    puts("");
}
