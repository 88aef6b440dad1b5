#pragma once
#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "luff/base/result.h"

/// The small part of SQLite that the catalog uses, with errors as Status. **Thread-compatible.**
namespace luff::catalog {

/// One value that is bound to a statement.
class Bound {
 public:
  Bound(std::int64_t number)
      : kind_(Kind::kInteger),
        integer_(number) {}                                    // NOLINT: values are passed in lists
  Bound(double number) : kind_(Kind::kReal), real_(number) {}  // NOLINT
  Bound(std::string text) : kind_(Kind::kText), text_(std::move(text)) {}  // NOLINT
  static Bound Null() { return {}; }
  void To(sqlite3_stmt* statement, int place) const;

 private:
  enum class Kind : std::uint8_t { kNull, kInteger, kReal, kText };
  Bound() = default;
  Kind kind_ = Kind::kNull;
  std::int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
};

/// A prepared statement.
class Statement {
 public:
  /// Binds from the first place on, and starts again.
  Statement& With(const std::vector<Bound>& values);
  /// Goes to the next row; false at the end.
  [[nodiscard]] Result<bool> Row();
  /// Runs a statement without rows.
  [[nodiscard]] Status Run();
  [[nodiscard]] std::int64_t Integer(int column) const { return sqlite3_column_int64(get(), column); }
  [[nodiscard]] double Real(int column) const { return sqlite3_column_double(get(), column); }
  [[nodiscard]] bool IsNull(int column) const { return sqlite3_column_type(get(), column) == SQLITE_NULL; }
  [[nodiscard]] std::string Text(int column) const;

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* of) const noexcept { sqlite3_finalize(of); }
  };
  [[nodiscard]] sqlite3_stmt* get() const { return statement_.get(); }
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

/// Errors of all functions: kCorruption (the file is damaged, or no database), kUnavailable (another process
/// holds it), kIo (all others).
class Database {
 public:
  /// Opens or creates a file; ":memory:" for none.
  [[nodiscard]] static Result<Database> Open(const std::string& path);
  [[nodiscard]] Result<Statement> Prepare(const std::string& sql);
  /// Runs statements that return no rows.
  [[nodiscard]] Status Run(const std::string& sql);
  [[nodiscard]] std::int64_t LastId() const { return sqlite3_last_insert_rowid(handle_.get()); }

 private:
  struct Close {
    void operator()(sqlite3* of) const noexcept { sqlite3_close(of); }
  };
  std::unique_ptr<sqlite3, Close> handle_;
};

}  // namespace luff::catalog
