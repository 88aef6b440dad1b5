// The server on real sockets: under the sanitizers, ended while clients wait.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/owned_fd.h"
#include "query/testing.h"
#include "server/net.h"
#include "server/service.h"

namespace luff::server::net_test {
namespace {

using query::testing::TempRun;
using query::testing::Writing;

/// A connection that gives up after 20 s.
OwnedFd Connect(std::uint16_t port) {
  OwnedFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval limit{20, 0};
  setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr address{};
  std::memcpy(&address, &at, sizeof(at));
  EXPECT_EQ(connect(client.get(), &address, sizeof(address)), 0);
  return client;
}

void Send(const OwnedFd& client, const std::string& text) {
  EXPECT_EQ(send(client.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

/// Reads until `end` has come, or the connection ends.
std::string Read(const OwnedFd& client, const std::string& end) {
  std::string got;
  char part[4096];
  while (got.find(end) == std::string::npos) {
    const ssize_t n = recv(client.get(), part, sizeof(part), 0);
    if (n <= 0) break;
    got.append(part, static_cast<std::size_t>(n));
  }
  return got;
}

TEST(Net, EndsWhileClientsWait) {
  const TempRun run;
  Writing writing(run.path(), 0, 1);
  writing.Define(0, "loss", 1, format::Role::kLoss);
  for (int i = 0; i < 10; ++i) {
    writing.AddScalar(0, i);
    writing.Step();
  }
  for (const int number : {SIGTERM, SIGINT}) {
    auto listener = Listener::Open({});
    ASSERT_TRUE(listener.ok()) << listener.status().ToString();
    const std::uint16_t port = (*listener)->port();
    Secrets secrets;
    secrets.Add("secret", Role::kViewer);
    Service service(LoopbackPlace(port), &secrets,
                    {.roots = {std::filesystem::path(run.path()).parent_path().string()}});
    const std::string head =
        " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\nAuthorization: Bearer secret\r\n\r\n";
    int signal = 0;
    std::thread server([&] { signal = (*listener)->Serve(&service); });
    const OwnedFd client = Connect(port);
    Send(client, "GET /api/v1/runs" + head);
    const std::string runs = Read(client, "}]");
    EXPECT_NE(runs.find("HTTP/1.1 200 OK"), std::string::npos) << runs;
    const std::size_t id = runs.find("\"id\":\"") + 6;
    const OwnedFd stream = Connect(port);
    Send(stream, "GET /api/v1/live?runs=" + runs.substr(id, 32) + head);
    EXPECT_NE(Read(stream, "\"step_count\":10").find("event: run"), std::string::npos);
    const OwnedFd idle = Connect(port);
    const OwnedFd half = Connect(port);
    Send(half, "GET /api");
    std::vector<OwnedFd> busy;  // answers that nobody reads
    for (int i = 0; i < 20; ++i) {
      busy.push_back(Connect(port));
      Send(busy.back(), "GET /api/v1/runs/" + runs.substr(id, 32) + "/columns?tensor=0" + head);
    }
    kill(getpid(), number);
    server.join();
    EXPECT_EQ(signal, number);
    EXPECT_EQ(Read(half, "never"), "");
  }
}

TEST(Net, RefusesAddressesThatOthersReach) {
  for (const char* address : {"0.0.0.0", "::", "192.0.2.1"})
    EXPECT_EQ(Listener::Open({.address = address}).status().code(), StatusCode::kFailedPrecondition)
        << address;
  for (const char* address : {"", "evil.test", "127.0.0.1.", "/tmp/x"})
    EXPECT_EQ(Listener::Open({.address = address}).status().code(), StatusCode::kInvalidArgument) << address;
  const auto first = Listener::Open({});
  ASSERT_TRUE(first.ok());
  const auto second = Listener::Open({.port = (*first)->port()});
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find("another program listens"), std::string_view::npos);
}

}  // namespace
}  // namespace luff::server::net_test
