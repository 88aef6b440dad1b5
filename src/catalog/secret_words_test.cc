#include "catalog/secret_words.h"

#include <gtest/gtest.h>

namespace luff::catalog::secret_words_test {
namespace {

TEST(SecretWords, AreNamesOfSecrets) {
  for (const char* name :
       {"token", "--api-key", "hf_token", "HF_TOKEN", "authToken", "db.password", "PASSWD", "client_secret",
        "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "credentials", "apikey", "private-key", "secret_2"})
    EXPECT_TRUE(SoundsSecret(name)) << name;
  for (const char* name : {"", "tokenizer", "--max-tokens", "num_tokens", "pad_token", "eos-token",
                           "pad_token_id", "key", "keys", "secretary", "lr", "tokens_per_step"})
    EXPECT_FALSE(SoundsSecret(name)) << name;
}

TEST(SecretWords, AreHiddenInACommand) {
  const std::vector<std::string> command = {"train.py",     "--lr",
                                            "0.1",          "--api-key",
                                            "abc",          "--hf-token=abc",
                                            "API_KEY=abc",  "db=https://ann:abc@host/x",
                                            "--password",   "-abc",
                                            "--token",      "--flag",
                                            "--max-tokens", "5"};
  const std::vector<std::string> shown = {"train.py",
                                          "--lr",
                                          "0.1",
                                          "--api-key",
                                          "(hidden)",
                                          "--hf-token=(hidden)",
                                          "API_KEY=(hidden)",
                                          "db=https://ann:(hidden)@host/x",
                                          "--password",
                                          "(hidden)",
                                          "--token",
                                          "--flag",
                                          "--max-tokens",
                                          "5"};
  EXPECT_EQ(WithoutSecrets(command), shown);
  for (const char* word : {"", "://", "a://", "a://@", "a://:@", "=", "-", "--token"})
    (void)WithoutSecrets({word, word});
}

}  // namespace
}  // namespace luff::catalog::secret_words_test
