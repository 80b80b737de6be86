// Mapping whole files, and what is not a file.
// SPDX-License-Identifier: MIT
#include "io/mapped_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "io_support.h"

namespace terrace::test {
namespace {

std::string text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, BytesAreThoseOfTheFile) {
    const TempDir dir;
    write_file(dir.path() / "a", "hello");
    const MappedFile file = must(MappedFile::open(dir.path() / "a"));
    EXPECT_EQ(text_of(file), "hello");
    EXPECT_EQ(file.path(), dir.path() / "a");
}

TEST(MappedFile, EmptyFileMapsToNoBytes) {
    const TempDir dir;
    write_file(dir.path() / "a", "");
    const MappedFile file = must(MappedFile::open(dir.path() / "a"));
    EXPECT_TRUE(file.bytes().empty());
    file.advise_random(0, 0);
    EXPECT_EQ(must(read_text_file(dir.path() / "a", 0)), "");
}

TEST(MappedFile, MovingKeepsTheBytesAndEmptiesTheSource) {
    const TempDir dir;
    write_file(dir.path() / "a", "first");
    write_file(dir.path() / "b", "second");
    MappedFile a = must(MappedFile::open(dir.path() / "a"));
    MappedFile b = must(MappedFile::open(dir.path() / "b"));
    a = std::move(b);
    EXPECT_EQ(text_of(a), "second");
    EXPECT_TRUE(b.bytes().empty());  // NOLINT: the moved-from state is what is tested
}

TEST(MappedFile, WhatIsNotAFileIsNamed) {
    const TempDir dir;
    EXPECT_ERROR(MappedFile::open(dir.path()), Code::invalid_argument,
                 "is a directory, need a file");
    EXPECT_ERROR(MappedFile::open(dir.path() / "no"), Code::not_found,
                 "no: cannot open: No such file");
    // Without a writer an ordinary open of a pipe would wait for ever.
    ASSERT_EQ(::mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
    EXPECT_ERROR(MappedFile::open(dir.path() / "pipe"), Code::invalid_argument,
                 "is a device or a pipe");
}

TEST(MappedFile, AdviceTakesAnyRangeInsideTheFile) {
    const TempDir dir;
    write_file(dir.path() / "a", std::string(20000, 'x'));
    const MappedFile file = must(MappedFile::open(dir.path() / "a"));
    file.advise_random(0, 20000);
    file.advise_random(4097, 3);
    file.advise_random(20000, 0);
    EXPECT_EQ(file.bytes()[19999], std::byte{'x'});
    EXPECT_DEATH(file.advise_random(19999, 2), "broken promise");
}

TEST(MappedFile, TextBeyondTheLimitIsRefusedWithBothSizes) {
    const TempDir dir;
    write_file(dir.path() / "a", "hello");
    EXPECT_EQ(must(read_text_file(dir.path() / "a", 5)), "hello");
    EXPECT_ERROR(read_text_file(dir.path() / "a", 4), Code::invalid_argument,
                 "has 5 bytes, at most 4 are read");
}

}  // namespace
}  // namespace terrace::test
