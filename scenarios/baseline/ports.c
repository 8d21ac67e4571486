// The least an echo server does on completion ports, with one port that its threads share or one port for each; for
// scenarios/ports/run:
//   x86_64-w64-mingw32-gcc -O2 -o ports.exe scenarios/baseline/ports.c -lws2_32 && wine ports.exe WAY THREADS PORT
// WAY: shared own. A connection has one operation in flight, a receive or a send, so no thread needs a lock. Accepted
// on the main thread; with `own`, connections go to the ports in turn. Errors end the program; connections are not
// closed.
#include <winsock2.h>
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096, BATCH = 64 };

struct connection {
    OVERLAPPED overlapped; // the first, so that its address is that of the connection
    SOCKET socket;
    int sends;
    DWORD sent, length;
    char bytes[BYTES];
};

static void fail(const char *what) {
    fprintf(stderr, "%s: error %d\n", what, WSAGetLastError());
    exit(1);
}

static void post(struct connection *c) {
    DWORD flags = 0, at = c->sends ? c->sent : 0;
    WSABUF buffer = {c->sends ? c->length - at : BYTES, c->bytes + at};
    memset(&c->overlapped, 0, sizeof c->overlapped);
    int failed = c->sends ? WSASend(c->socket, &buffer, 1, NULL, 0, &c->overlapped, NULL)
                          : WSARecv(c->socket, &buffer, 1, NULL, &flags, &c->overlapped, NULL);
    if (failed && WSAGetLastError() != WSA_IO_PENDING) c->socket = INVALID_SOCKET; // the peer is gone
}

static DWORD WINAPI work(void *port) {
    OVERLAPPED_ENTRY entries[BATCH];
    ULONG count;
    for (;;) {
        if (!GetQueuedCompletionStatusEx(port, entries, BATCH, &count, INFINITE, FALSE)) fail("wait");
        for (ULONG i = 0; i < count; i++) {
            struct connection *c = (struct connection *)entries[i].lpOverlapped;
            DWORD bytes = entries[i].dwNumberOfBytesTransferred;
            if (!bytes) continue; // an end or an error
            if (c->sends) {
                c->sent += bytes;
                c->sends = c->sent < c->length;
            } else {
                c->length = bytes;
                c->sent = 0;
                c->sends = 1;
            }
            post(c);
        }
    }
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: ports WAY THREADS PORT\n");
        return 2;
    }
    int is_shared = !strcmp(words[1], "shared"), threads = atoi(words[2]);
    WSADATA data;
    if (threads < 1 || threads > 64 || WSAStartup(MAKEWORD(2, 2), &data)) fail("start");
    HANDLE ports[64];
    for (int i = 0; i < threads; i++) {
        int at_once = is_shared ? threads : 1;
        ports[i] = i && is_shared ? ports[0] : CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, at_once);
        if (!ports[i] || !CreateThread(NULL, 1 << 16, work, ports[i], 0, NULL)) fail("a port or thread");
    }
    SOCKET listener = WSASocketW(AF_INET, SOCK_STREAM, 0, NULL, 0, WSA_FLAG_OVERLAPPED);
    struct sockaddr_in at = {AF_INET, htons(atoi(words[3])), {.S_un.S_addr = htonl(INADDR_LOOPBACK)}};
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1024)) fail("listen");
    for (unsigned turn = 0;; turn++) {
        struct connection *c = calloc(1, sizeof *c);
        if (!c || (c->socket = accept(listener, NULL, NULL)) == INVALID_SOCKET) fail("accept");
        int on = 1;
        setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, (char *)&on, sizeof on);
        if (!CreateIoCompletionPort((HANDLE)c->socket, ports[turn % threads], 0, 0)) fail("a port");
        post(c);
    }
}
