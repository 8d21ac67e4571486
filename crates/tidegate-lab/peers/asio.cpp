// Boost.Asio, answering every request with the same 4 KiB page.  server PORT async|sync
//
// async: one thread, one io_context. sync: a thread for each connection. Both find the end of a head and the field "Connection: close" in it,
// and write head and page in one go; a request has no body.
#include <boost/asio.hpp>

#include <memory>
#include <string>
#include <thread>

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

static const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 4096\r\n";
static const std::string page(4096, 'x');
static const std::string kept = head + "\r\n" + page;
static const std::string closed = head + "Connection: close\r\n\r\n" + page;

static bool is_last(const std::string& request) {
    return request.find("onnection: close\r\n") != std::string::npos;
}

struct Session : std::enable_shared_from_this<Session> {
    tcp::socket socket;
    std::string input;

    explicit Session(tcp::socket s) : socket(std::move(s)) {}

    void read() {
        auto self = shared_from_this();
        asio::async_read_until(socket, asio::dynamic_buffer(input, 65536), "\r\n\r\n", [self](Error error, std::size_t length) {
            if (!error) self->write(length);
        });
    }

    void write(std::size_t length) {
        bool last = is_last(input.substr(0, length));
        input.erase(0, length);
        auto self = shared_from_this();
        asio::async_write(socket, asio::buffer(last ? closed : kept), [self, last](Error error, std::size_t) {
            if (!error && !last) self->read();
        });
    }
};

static void accept(tcp::acceptor& acceptor) {
    acceptor.async_accept([&acceptor](Error error, tcp::socket socket) {
        if (!error) {
            socket.set_option(tcp::no_delay(true), error);
            std::make_shared<Session>(std::move(socket))->read();
        }
        accept(acceptor);
    });
}

static void serve(tcp::socket socket) {
    Error error;
    socket.set_option(tcp::no_delay(true), error);
    std::string input;
    for (;;) {
        std::size_t length = asio::read_until(socket, asio::dynamic_buffer(input, 65536), "\r\n\r\n", error);
        if (error) return;
        bool last = is_last(input.substr(0, length));
        input.erase(0, length);
        asio::write(socket, asio::buffer(last ? closed : kept), error);
        if (error || last) return;
    }
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    asio::io_context context(1);
    tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), static_cast<unsigned short>(std::stoi(argv[1]))});
    acceptor.listen(4096);
    if (std::string(argv[2]) == "async") {
        accept(acceptor);
        context.run();
        return 0;
    }
    for (;;) {
        Error error;
        tcp::socket socket(context);
        acceptor.accept(socket, error);
        if (error) continue;
        try {
            std::thread(serve, std::move(socket)).detach();
        } catch (const std::system_error&) {
            // No thread to be had: the connection is closed, and the others are served on.
        }
    }
}
