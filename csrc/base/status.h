// Failures are values: an errno (or 0) and the call that failed, turned into Python exceptions in bind/ only.
#pragma once
#include <string>
#include <utility>
#include <variant>

namespace homenode {

// Whose fault: the file or argument (user), the machine (host), or ours (internal).
enum class Fault { user, host, internal };

struct Error {
  Fault fault = Fault::internal;
  int code = 0;         // errno, 0 where no system call failed
  std::string message;  // what failed, where, seen, wanted
};

template <class T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}
  explicit operator bool() const { return state_.index() == 0; }
  T& value() { return std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace homenode
