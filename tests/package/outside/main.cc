#include <cstdio>
#include <string>

#include "luff/base/status.h"
#include "luff/base/version.h"

int main() {
  const luff::Status status = luff::NotFound("nothing here");
  std::printf("luff %s\n%s\n", std::string(luff::Version()).c_str(), status.ToString().c_str());
  return 0;
}
