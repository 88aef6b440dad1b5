#include "catalog/database.h"

#include <utility>

namespace luff::catalog {
namespace {

constexpr int kBusyMs = 2000;

Status ErrorOf(sqlite3* handle, int code, const std::string& what) {
  const std::string text = what + ": " + (handle != nullptr ? sqlite3_errmsg(handle) : sqlite3_errstr(code));
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Corruption(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return Unavailable(text);
    default: return IoError(text);
  }
}

}  // namespace

void Bound::To(sqlite3_stmt* statement, int place) const {
  switch (kind_) {
    case Kind::kNull: sqlite3_bind_null(statement, place); break;
    case Kind::kInteger: sqlite3_bind_int64(statement, place, integer_); break;
    case Kind::kReal: sqlite3_bind_double(statement, place, real_); break;
    case Kind::kText:
      sqlite3_bind_text64(statement, place, text_.data(), text_.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
      break;
  }
}

Statement& Statement::With(const std::vector<Bound>& values) {
  sqlite3_reset(get());
  for (std::size_t i = 0; i < values.size(); ++i) values[i].To(get(), static_cast<int>(i) + 1);
  return *this;
}

Result<bool> Statement::Row() {
  const int code = sqlite3_step(get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return ErrorOf(sqlite3_db_handle(get()), code, "the catalog cannot be read");
}

Status Statement::Run() {
  const auto row = Row();
  sqlite3_reset(get());
  return row.ok() ? Status::Ok() : row.status();
}

std::string Statement::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(get(), column));
  return text == nullptr ? std::string()
                         : std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(get(), column)));
}

Result<Database> Database::Open(const std::string& path) {
  sqlite3* opened = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  Database database;
  database.handle_.reset(opened);
  if (code != SQLITE_OK) return ErrorOf(opened, code, "the catalog cannot be opened: " + path);
  sqlite3_busy_timeout(opened, kBusyMs);
  return database;
}

Result<Statement> Database::Prepare(const std::string& sql) {
  sqlite3_stmt* made = nullptr;
  const int code =
      sqlite3_prepare_v2(handle_.get(), sql.c_str(), static_cast<int>(sql.size()), &made, nullptr);
  if (code != SQLITE_OK) return ErrorOf(handle_.get(), code, "the catalog cannot be asked");
  Statement statement;
  statement.statement_.reset(made);
  return statement;
}

Status Database::Run(const std::string& sql) {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status::Ok() : ErrorOf(handle_.get(), code, "the catalog cannot be written");
}

}  // namespace luff::catalog
