namespace luff::cli {}
