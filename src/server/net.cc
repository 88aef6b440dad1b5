#include "server/net.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "base/format.h"
#include "luff/base/env.h"
#include "server/service.h"

namespace luff::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Protocol = asio::generic::stream_protocol;  // TCP and Unix sockets
using Stream = beast::basic_stream<Protocol>;
using ErrorCode = boost::system::error_code;
using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kIdle = 30s, kTick = 250ms, kUnlooked = 500ms, kQuiet = 10s, kAsked = 10s,
                                    kProve = 1s;
constexpr std::chrono::milliseconds kLinger = 500ms;
constexpr std::size_t kMaxLinger = 1 << 20;
constexpr std::int64_t kWorkNs = 10'000'000'000;  // that one answer may take

auto Into(ErrorCode& error) { return asio::redirect_error(asio::use_awaitable, error); }

using Message = http::request<http::string_body>;

Response BadRequest(std::string_view why) { return Problem(400, "Bad request", why); }

/// Takes over what the server looks at. Returns an answer for what no route can understand.
std::optional<Response> Understand(const Message& from, const Place& place, Request* to) {
  const auto header = [&](auto name) {
    const auto at = from.find(name);
    return at == from.end() ? std::string() : std::string(at->value());
  };
  if (from.target().size() > kMaxTarget) return Problem(414, "Too long", "the address is too long");
  if (from.count(http::field::host) != 1) return BadRequest("expected one header Host");
  // Where a proxy and we disagree on the end of a body, what is a body for one is a request for the other.
  if (const auto coding = from.find(http::field::transfer_encoding); coding != from.end()) {
    if (from.count(http::field::content_length) > 0 || from.count(http::field::transfer_encoding) > 1 ||
        !beast::iequals(coding->value(), "chunked"))
      return BadRequest("a body has either Content-Length or Transfer-Encoding: chunked");
  }
  if (from.count(http::field::authorization) > 1 || from.count(http::field::origin) > 1)
    return BadRequest("a header occurs twice");
  to->method = std::string(from.method_string());
  if (const Status parsed = ParseTarget({from.target().data(), from.target().size()}, to); !parsed.ok())
    return ProblemOf(parsed);
  const std::string_view base = place.base;
  if (!base.empty()) {
    if (!to->path.starts_with(base) || (to->path.size() > base.size() && to->path[base.size()] != '/'))
      return Problem(404, "Not found", fmt::format("everything is below {}/ here", base));
    to->path.erase(0, base.size());
  }
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
  if (place.proxy) {  // else nobody can name a user
    const ProxySignOn& proxy = *place.proxy;
    for (const std::string* name : {&proxy.user_header, &proxy.groups_header, &proxy.secret_header}) {
      if (from.count(*name) > 1) return BadRequest("a header of the proxy occurs twice");
    }
    to->user = header(proxy.user_header);
    to->groups = header(proxy.groups_header);
    to->proxy_secret = header(proxy.secret_header);
  }
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

/// The numeric address of the other end; "unix" for a Unix socket.
std::string PeerOf(const Protocol::socket& socket) {
  ErrorCode error;
  const auto end = socket.remote_endpoint(error);
  if (error || end.protocol().family() == AF_UNIX) return error ? "" : "unix";
  tcp::endpoint address;
  if (end.size() > address.capacity()) return "";
  std::memcpy(address.data(), end.data(), end.size());
  address.resize(end.size());
  return address.address().to_string();
}

Result<asio::ip::address> IpOf(const ListenAt& at) {
  ErrorCode error;
  const auto ip = asio::ip::make_address(at.address == "localhost" ? "127.0.0.1" : at.address, error);
  if (error)
    return InvalidArgument(fmt::format("'{}' is no address; there are 127.0.0.1 and ::1", at.address));
  if (!ip.is_loopback() && !at.others) {
    return FailedPrecondition(
        fmt::format("{} can be reached from other machines, where a token would travel unencrypted; listen "
                    "on 127.0.0.1 and "
                    "use a tunnel (ssh -L PORT:127.0.0.1:PORT HOST)",
                    at.address));
  }
  return ip;
}

bool IsSocket(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

class Beast final : public Listener {
 public:
  Beast()
      : io_(std::make_unique<asio::io_context>(1)),
        acceptor_(std::make_unique<Acceptor>(*io_)),
        pool_(std::make_unique<asio::thread_pool>(2)) {}
  ~Beast() override {
    if (!path_.empty()) unlink(path_.c_str());
  }

  Status Bind(const ListenAt& at) { return at.path.empty() ? BindAddress(at) : BindPath(at); }

  Status BindAddress(const ListenAt& at) {
    ErrorCode error;
    const std::string& address = at.address;
    LUFF_ASSIGN_OR_RETURN(const asio::ip::address ip, IpOf(at));
    const tcp::endpoint place(ip, at.port);
    acceptor_->open(Protocol(place.protocol()), error);
    if (!error) acceptor_->set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_->bind(place, error);
    if (!error) acceptor_->listen(asio::socket_base::max_listen_connections, error);
    if (error == asio::error::address_in_use) {
      return AlreadyExists(
          fmt::format("another program listens on {}:{}; give another port, or 0 for any", address, at.port));
    }
    if (error) return IoError(fmt::format("cannot listen on {}:{}: {}", address, at.port, error.message()));
    tcp::endpoint bound;
    const auto end = acceptor_->local_endpoint();
    std::memcpy(bound.data(), end.data(), std::min(end.size(), bound.capacity()));
    port_ = bound.port();
    return Status::Ok();
  }

  Status BindPath(const ListenAt& at) {
    if (at.path.size() >= sizeof(sockaddr_un::sun_path))
      return InvalidArgument("the path of a Unix socket has at most 107 bytes: " + at.path);
    const asio::local::stream_protocol::endpoint place(at.path);
    ErrorCode error;
    acceptor_->open(Protocol(place.protocol()), error);
    if (error) return IoError("cannot make a Unix socket: " + error.message());
    const auto bind = [&] {
      const mode_t before = umask(0177);
      acceptor_->bind(place, error);
      umask(before);
    };
    bind();
    if (error == asio::error::address_in_use) {
      if (!IsSocket(at.path)) return AlreadyExists("this is a file, and no socket: " + at.path);
      asio::local::stream_protocol::socket other(*io_);
      ErrorCode refused;
      other.connect(place, refused);
      if (refused != asio::error::connection_refused)
        return AlreadyExists("another program listens on this socket: " + at.path);
      unlink(at.path.c_str());  // nobody listens: a server was killed
      bind();
    }
    if (error) return IoError(fmt::format("cannot listen on {}: {}", at.path, error.message()));
    path_ = at.path;
    if (!at.group.empty()) {
      const group* named = getgrnam(at.group.c_str());
      if (named == nullptr) return InvalidArgument(fmt::format("there is no group '{}'", at.group));
      if (chown(path_.c_str(), static_cast<uid_t>(-1), named->gr_gid) != 0 ||
          chmod(path_.c_str(), 0660) != 0) {
        return FailedPrecondition(fmt::format("cannot give the socket to group '{}': {}; be a member of it",
                                              at.group, std::strerror(errno)));
      }
    }
    acceptor_->listen(asio::socket_base::max_listen_connections, error);
    return error ? IoError(fmt::format("cannot listen on {}: {}", at.path, error.message())) : Status::Ok();
  }

  std::uint16_t port() const override { return port_; }

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
  using Acceptor = asio::basic_socket_acceptor<Protocol>;

  asio::awaitable<void> Accept() {
    for (;;) {
      ErrorCode error;
      Protocol::socket socket(*io_);
      co_await acceptor_->async_accept(socket, Into(error));
      if (error) {  // out of descriptors: those that are open will end
        asio::steady_timer pause(*io_, 100ms);
        co_await pause.async_wait(Into(error));
        continue;
      }
      if (connections_ >= kMaxConnections) {  // whoever has said nothing for longest makes room
        if (waiting_.empty()) continue;       // closes the new one
        waiting_.front()->cancel();
        waiting_.pop_front();
      }
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
      if (!service_->live().anybody()) continue;
      co_await InPool([&] { service_->Look(); });
      for (OpenStream* one : streams_) one->timer.cancel();  // all tell the news now
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
  struct Held {
    Held(std::uint64_t* of, std::uint64_t bytes) : sum(of), held(bytes) { *sum += held; }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { *sum -= held; }
    std::uint64_t* sum;
    std::uint64_t held;
  };

  /// A connection that waits for a request: it may be closed when others need its place.
  struct Waiting {
    Waiting(std::list<Stream*>* list, Stream* stream) : all(list), one(stream) { all->push_back(one); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { all->remove(one); }  // it may have been taken out
    std::list<Stream*>* all;
    Stream* one;
  };

  struct OpenStream {
    std::string viewer;
    asio::steady_timer timer;
    bool ends = false;  // somebody else needs its place
  };
  struct Listed {
    Listed(std::list<OpenStream*>* list, OpenStream* stream) : all(list), one(stream) { all->push_back(one); }
    Listed(const Listed&) = delete;
    Listed& operator=(const Listed&) = delete;
    ~Listed() { all->remove(one); }
    std::list<OpenStream*>* all;
    OpenStream* one;
  };

  /// Reads one request: its first byte within kIdle, headers and body within kAsked each.
  asio::awaitable<ErrorCode> Read(Stream* stream, beast::flat_buffer* buffer,
                                  http::request_parser<http::string_body>* parser) {
    ErrorCode error;
    const Waiting waiting(&waiting_, stream);
    if (buffer->size() == 0) {
      stream->expires_after(kIdle);
      const std::size_t got = co_await stream->async_read_some(buffer->prepare(4096), Into(error));
      buffer->commit(got);
      if (error)
        co_return error == asio::error::eof ? http::make_error_code(http::error::end_of_stream) : error;
    }
    stream->expires_after(kAsked);
    co_await http::async_read_header(*stream, *buffer, *parser, Into(error));
    if (error) co_return error;
    stream->expires_after(kAsked);
    co_await http::async_read(*stream, *buffer, *parser, Into(error));
    co_return error;
  }

  /// The answer for what is no request; nullopt if the connection has ended.
  std::optional<Response> Wrong(ErrorCode error) {
    if (error == http::error::body_limit || error == http::error::buffer_overflow)
      return Problem(413, "Too large", "the body is too large");
    if (error == http::error::header_limit) return Problem(431, "Too large", "the headers are too large");
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return BadRequest("this is not HTTP/1.1");
    return std::nullopt;
  }

  /// Lets the service answer, in a thread of the pool. If the client goes meanwhile, the work is told so.
  asio::awaitable<Response> Answer(Stream* stream, Request* request) {
    const auto work = std::make_shared<Work>(Env::Real().NowMonotonicNs() + kWorkNs);
    request->work = work.get();
    stream->socket().async_wait(Protocol::socket::wait_read,
                                [work, fd = stream->socket().native_handle()](const ErrorCode& error) {
                                  char byte = 0;
                                  if (!error && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
                                    work->Leave();
                                });
    Response response;
    co_await InPool([&] { response = service_->Answer(*request); });
    request->work = nullptr;
    ErrorCode ignored;
    stream->socket().cancel(ignored);
    co_return response;
  }

  asio::awaitable<void> Connection(Protocol::socket socket) {
    const Counted counted(&connections_);
    const std::string from = PeerOf(socket);
    Stream stream(std::move(socket));
    beast::flat_buffer buffer(kMaxHeader + kMaxBody);
    for (;;) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(kMaxHeader);
      parser.body_limit(kMaxBody);
      ErrorCode error = co_await Read(&stream, &buffer, &parser);
      Request request;
      request.from = from;
      bool keep = false;
      bool head = false;
      unsigned version = 11;
      std::optional<Response> response = Wrong(error);
      if (error && !response) co_return;
      if (!response) {
        const Message message = parser.release();
        keep = message.keep_alive();
        version = message.version();
        head = message.method() == http::verb::head;
        response = Understand(message, service_->place(), &request);
        keep = keep && (!response || response->status != 400);  // where a request ends is in doubt
      }
      if (!response) response = co_await Answer(&stream, &request);
      if (response->is_stream && !head) {
        co_await Events(&stream, request, *response);
        co_return;
      }
      if (under_way_ + response->body.size() > kMaxUnderWay) {
        response =
            Problem(503, "Too much at once", "too many answers wait to be read", "Ask again in a moment.");
      }
      const Held held(&under_way_, response->body.size());
      const auto answer = MessageOf(*std::move(response), head, version, keep);
      http::response_serializer<http::string_body> serializer(answer);
      stream.expires_after(kIdle);
      co_await http::async_write(stream, serializer, Into(error));
      if (error || !keep) break;
    }
    ErrorCode error;
    stream.socket().shutdown(Protocol::socket::shutdown_send, error);
    // What the client still sends is read for a moment: closing at once would take the answer from it.
    std::size_t left = kMaxLinger;
    stream.expires_after(kLinger);
    while (!error && left > 0) {
      buffer.clear();
      const std::size_t got = co_await stream.async_read_some(buffer.prepare(16 << 10), Into(error));
      left -= std::min(left, got);
    }
  }

  /// Makes room for a stream of `viewer`: of all who have more streams open than that, the one who has most
  /// loses the oldest. Returns false if nobody has more.
  bool MakeRoom(const std::string& viewer) {
    std::map<std::string_view, std::size_t> open;
    for (const OpenStream* one : streams_) {
      if (!one->ends) ++open[one->viewer];
    }
    std::size_t all = 0;
    for (const auto& [name, count] : open) all += count;
    if (all < kMaxStreams) return true;
    const auto most = std::ranges::max_element(open, {}, [](const auto& one) { return one.second; });
    if (most == open.end() || most->second <= open[viewer] + 1) return false;
    const auto oldest = std::ranges::find_if(
        streams_, [&](const OpenStream* one) { return !one->ends && one->viewer == most->first; });
    (*oldest)->ends = true;
    return true;
  }

  /// An event stream, until the client goes. A slow client gets fewer events, and the newest ones.
  asio::awaitable<void> Events(Stream* stream, const Request& request, const Response& response) {
    ErrorCode error;
    if (!MakeRoom(response.viewer)) {
      const auto full = MessageOf(Problem(503, "Too many streams", "too many pages are open",
                                          "Close some: the server keeps as many for others as for you."),
                                  false, 11, false);
      http::response_serializer<http::string_body> serializer(full);
      co_await http::async_write(*stream, serializer, Into(error));
      co_return;
    }
    OpenStream open{.viewer = response.viewer, .timer = asio::steady_timer(*io_)};
    const Listed listed(&streams_, &open);
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
    text += "\r\nretry: 1000\nevent: hello\ndata: {}\n\n";
    auto written = std::chrono::steady_clock::now();
    auto proved = written;
    while (!error) {
      const auto now = std::chrono::steady_clock::now();
      if (open.ends) break;
      if (now - proved > kProve) {
        if (!service_->MayStill(request, told.runs)) break;
        proved = now;
      }
      text += service_->live().News(&told);
      if (text.empty() && now - written > kQuiet) text = ":\n\n";
      if (!text.empty()) {
        stream->expires_after(kIdle);
        co_await asio::async_write(*stream, asio::buffer(text), Into(error));
        written = now;
        text.clear();
      }
      if (error) break;
      open.timer.expires_after(kUnlooked);
      ErrorCode looked;  // cancelled: there may be news
      co_await open.timer.async_wait(Into(looked));
    }
  }

  std::unique_ptr<asio::io_context> io_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<asio::thread_pool> pool_;
  Service* service_ = nullptr;
  std::size_t connections_ = 0;
  std::list<OpenStream*> streams_;  // the oldest first
  std::uint64_t under_way_ = 0;     // bytes of answers that are being written
  std::list<Stream*> waiting_;      // for a request; the longest first
  std::uint16_t port_ = 0;
  std::string path_;  // of the Unix socket, to be removed
};

}  // namespace

Status CheckAddress(const ListenAt& at) { return at.path.empty() ? IpOf(at).status() : Status::Ok(); }

Result<std::unique_ptr<Listener>> Listener::Open(const ListenAt& at) {
  auto listener = std::make_unique<Beast>();
  LUFF_RETURN_IF_ERROR(listener->Bind(at));
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace luff::server
