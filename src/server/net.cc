#include "server/net.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "base/format.h"
#include "server/service.h"

namespace luff::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kIdle = 30s, kTick = 250ms, kQuiet = 10s;

auto Into(ErrorCode& error) { return asio::redirect_error(asio::use_awaitable, error); }

using Message = http::request<http::string_body>;

Response BadRequest(std::string_view why) { return Problem(400, "Bad request", why); }

/// Takes over what the server looks at. Returns an answer for what no route can understand.
std::optional<Response> Understand(const Message& from, Request* to) {
  const auto header = [&](auto name) {
    const auto at = from.find(name);
    return at == from.end() ? std::string() : std::string(at->value());
  };
  if (from.target().size() > kMaxTarget) return Problem(414, "Too long", "the address is too long");
  if (from.count(http::field::host) != 1) return BadRequest("expected one header Host");
  if (from.count(http::field::authorization) > 1 || from.count(http::field::origin) > 1)
    return BadRequest("a header occurs twice");
  to->method = std::string(from.method_string());
  if (const Status parsed = ParseTarget({from.target().data(), from.target().size()}, to); !parsed.ok())
    return ProblemOf(parsed);
  to->host = header(http::field::host);
  to->origin = header(http::field::origin);
  to->fetch_site = header("Sec-Fetch-Site");
  to->fetch_mode = header("Sec-Fetch-Mode");
  to->cookie = header(http::field::cookie);
  to->authorization = header(http::field::authorization);
  to->csrf = header("X-Luff-CSRF");
  to->content_type = header(http::field::content_type);
  to->accept = header(http::field::accept);
  to->if_none_match = header(http::field::if_none_match);
  to->accepts_gzip = header(http::field::accept_encoding).find("gzip") != std::string::npos;
  to->body = from.body();
  return std::nullopt;
}

http::response<http::string_body> MessageOf(Response response, bool head, unsigned version, bool keep) {
  http::response<http::string_body> message(static_cast<http::status>(response.status), version);
  bool cached = false;
  for (const auto& [name, value] : SafetyHeaders()) message.set(name, value);
  for (const auto& [name, value] : response.headers) {
    message.insert(name, value);
    cached = cached || name == "Cache-Control";
  }
  if (!cached) message.set(http::field::cache_control, "no-store");
  if (!response.type.empty()) message.set(http::field::content_type, response.type);
  if (response.gzipped) message.set(http::field::content_encoding, "gzip");
  message.keep_alive(keep);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head) message.body().clear();
  return message;
}

class Beast final : public Listener {
 public:
  Beast()
      : io_(std::make_unique<asio::io_context>(1)),
        acceptor_(std::make_unique<tcp::acceptor>(*io_)),
        pool_(std::make_unique<asio::thread_pool>(2)) {}

  Status Bind(const std::string& address, std::uint16_t port) {
    ErrorCode error;
    const auto ip = asio::ip::make_address(address == "localhost" ? "127.0.0.1" : address, error);
    if (error)
      return InvalidArgument(fmt::format("'{}' is no address; there are 127.0.0.1 and ::1", address));
    if (!ip.is_loopback()) {
      return FailedPrecondition(
          fmt::format("{} can be reached from other machines, where a token in a link would travel "
                      "unencrypted; listen on "
                      "127.0.0.1 and use a tunnel: ssh -L PORT:127.0.0.1:PORT HOST",
                      address));
    }
    const tcp::endpoint place(ip, port);
    acceptor_->open(place.protocol(), error);
    if (!error) acceptor_->set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_->bind(place, error);
    if (!error) acceptor_->listen(asio::socket_base::max_listen_connections, error);
    if (error == asio::error::address_in_use) {
      return AlreadyExists(fmt::format(
          "another program listens on port {}; give another one with --listen {}:PORT, or 0 for any", port,
          address));
    }
    if (error) return IoError(fmt::format("cannot listen on {}:{}: {}", address, port, error.message()));
    return Status::Ok();
  }

  std::uint16_t port() const override { return acceptor_->local_endpoint().port(); }

  int Serve(Service* service) override {
    service_ = service;
    int signal = 0;
    {
      asio::signal_set signals(*io_, SIGTERM, SIGINT, SIGHUP);
      signals.async_wait([&](const ErrorCode& error, int number) {
        if (error) return;
        signal = number;
        io_->stop();
      });
      asio::co_spawn(*io_, Accept(), asio::detached);
      asio::co_spawn(*io_, Look(), asio::detached);
      io_->run();
    }
    // Where a disk hangs, a thread of the pool may never come back; the program ends all the same.
    std::signal(SIGALRM, [](int) { _exit(0); });
    alarm(1);
    // What waits ends here, while the service that it uses is still there; work that waits for the pool
    // first, since it comes back to the other.
    pool_->stop();
    pool_->join();
    alarm(0);
    pool_.reset();
    acceptor_.reset();
    io_.reset();
    return signal;
  }

 private:
  asio::awaitable<void> Accept() {
    for (;;) {
      ErrorCode error;
      tcp::socket socket = co_await acceptor_->async_accept(Into(error));
      if (error) {  // out of descriptors: those that are open will end
        asio::steady_timer pause(*io_, 100ms);
        co_await pause.async_wait(Into(error));
        continue;
      }
      if (connections_ >= kMaxConnections) continue;  // closes it
      asio::co_spawn(*io_, Connection(std::move(socket)), asio::detached);
    }
  }

  /// Looks at what is watched, four times a second.
  asio::awaitable<void> Look() {
    asio::steady_timer timer(*io_);
    for (;;) {
      ErrorCode error;
      timer.expires_after(kTick);
      co_await timer.async_wait(Into(error));
      if (service_->live().anybody()) co_await InPool([&] { LookOnce(); });
    }
  }

  void LookOnce() noexcept {
    try {
      service_->live().Look();
    } catch (const std::exception&) {
      return;  // no memory: the next look may find some
    }
  }

  /// Runs `work`, which does not throw, in a thread of the pool and comes back.
  template <typename Work>
  asio::awaitable<void> InPool(Work work) {
    co_await asio::co_spawn(
        *pool_,
        [&work]() -> asio::awaitable<void> {
          work();
          co_return;
        },
        asio::use_awaitable);
  }

  struct Counted {
    explicit Counted(std::size_t* of) : count(of) { ++*count; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() { --*count; }
    std::size_t* count;
  };

  asio::awaitable<void> Connection(tcp::socket socket) {
    const Counted counted(&connections_);
    beast::tcp_stream stream(std::move(socket));
    beast::flat_buffer buffer(kMaxHeader + kMaxBody);
    for (;;) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(kMaxHeader);
      parser.body_limit(kMaxBody);
      ErrorCode error;
      stream.expires_after(kIdle);
      co_await http::async_read(stream, buffer, parser, Into(error));
      Response response;
      Request request;
      bool keep = false;
      bool head = false;
      unsigned version = 11;
      if (error == http::error::body_limit || error == http::error::buffer_overflow) {
        response = Problem(413, "Too large", "the body is too large");
      } else if (error == http::error::header_limit) {
        response = Problem(431, "Too large", "the headers are too large");
      } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
                 error != http::error::end_of_stream && error != http::error::partial_message) {
        response = BadRequest("this is not HTTP/1.1");
      } else if (error) {
        co_return;
      } else {
        const Message message = parser.release();
        keep = message.keep_alive();
        version = message.version();
        head = message.method() == http::verb::head;
        if (auto refused = Understand(message, &request))
          response = *std::move(refused);
        else
          co_await InPool([&] { response = service_->Answer(request); });
      }
      if (response.is_stream) {
        co_await Stream(&stream, response);
        co_return;
      }
      stream.expires_after(kIdle);
      const auto answer = MessageOf(std::move(response), head, version, keep);
      http::response_serializer<http::string_body> serializer(answer);
      co_await http::async_write(stream, serializer, Into(error));
      if (error || !keep) break;
    }
    ErrorCode ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  /// An event stream, until the client goes. A slow client gets fewer events, and the newest ones.
  asio::awaitable<void> Stream(beast::tcp_stream* stream, const Response& response) {
    ErrorCode error;
    if (streams_ >= kMaxStreams) {
      const auto full =
          MessageOf(Problem(503, "Too many streams", "too many pages are open"), false, 11, false);
      http::response_serializer<http::string_body> serializer(full);
      co_await http::async_write(*stream, serializer, Into(error));
      co_return;
    }
    const Counted counted(&streams_);
    Told told;
    told.runs = response.live;
    struct Leaving {
      Live* live;
      const Told* told;
      ~Leaving() { live->Leave(*told); }
    };
    service_->live().Watch(told);
    const Leaving leaving{&service_->live(), &told};
    std::string text =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
        "X-Accel-Buffering: no\r\nConnection: close\r\n";
    for (const auto& [name, value] : SafetyHeaders()) text += fmt::format("{}: {}\r\n", name, value);
    text += "\r\nretry: 1000\n\n";
    asio::steady_timer timer(*io_);
    auto written = std::chrono::steady_clock::now();
    while (!error) {
      text += service_->live().News(&told);
      const auto now = std::chrono::steady_clock::now();
      if (text.empty() && now - written > kQuiet) text = ":\n\n";
      if (!text.empty()) {
        stream->expires_after(kIdle);
        co_await asio::async_write(*stream, asio::buffer(text), Into(error));
        written = now;
        text.clear();
      }
      if (error) break;
      timer.expires_after(kTick);
      co_await timer.async_wait(Into(error));
    }
  }

  std::unique_ptr<asio::io_context> io_;
  std::unique_ptr<tcp::acceptor> acceptor_;
  std::unique_ptr<asio::thread_pool> pool_;
  Service* service_ = nullptr;
  std::size_t connections_ = 0, streams_ = 0;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Open(const std::string& address, std::uint16_t port) {
  auto listener = std::make_unique<Beast>();
  LUFF_RETURN_IF_ERROR(listener->Bind(address, port));
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace luff::server
