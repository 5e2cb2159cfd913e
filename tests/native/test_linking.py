"""Objects become shared objects: what code asks of a linker, and what no code may ask."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from irc.backends.cpu.features import AVX2
from irc.backends.cpu.linking.relocatable import read_object
from irc.backends.cpu.linking.shared_object import shared_object
from irc.backends.cpu.native import machine
from irc.errors import InternalError

TEXT = """
@squares = internal constant [5 x i32] [i32 0, i32 1, i32 4, i32 9, i32 16]
@text = internal constant [6 x i8] c"hello\\00"
@count = internal global i64 40
@zeros = internal global [3000 x i64] zeroinitializer
@table = constant [3 x ptr] [ptr @square, ptr @bump, ptr getelementptr (i8, ptr @text, i64 1)]
@shared = global [2 x i64] zeroinitializer

declare ptr @memcpy(ptr, ptr, i64)
declare double @fmod(double, double)

define i32 @square(i32 %i) {
  %at = getelementptr [5 x i32], ptr @squares, i64 0, i32 %i
  %found = load i32, ptr %at
  ret i32 %found
}
define i64 @bump() {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  %at = getelementptr i64, ptr @zeros, i64 2999
  %far = load i64, ptr %at
  %sum = add i64 %far, %new
  store i64 %sum, ptr %at
  ret i64 %sum
}
define i64 @moved(ptr %to, i64 %size) {
  %end = call ptr @memcpy(ptr %to, ptr @text, i64 %size)
  %first = load i64, ptr @shared
  ret i64 %first
}
define double @rest(double %x, double %y) {
  %found = call double @fmod(double %x, double %y)
  ret double %found
}
define i32 @chosen(i32 %i) {
entry:
  switch i32 %i, label %none [ i32 0, label %a  i32 1, label %b  i32 2, label %c  i32 3, label %d
                               i32 4, label %e  i32 5, label %f ]
a:
  ret i32 10
b:
  ret i32 -7
c:
  ret i32 33
d:
  %s = call i32 @square(i32 4)
  ret i32 %s
e:
  ret i32 2
f:
  ret i32 1
none:
  ret i32 0
}
"""
EXPORTS = ("square", "bump", "moved", "rest", "chosen", "table", "shared")


def linked(text: str, exports: tuple[str, ...]) -> bytes:
    target = machine(AVX2)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = target.triple, str(target.target_data)
    return shared_object(read_object(target.emit_object(module)), exports, "test.so")


@pytest.fixture
def library(tmp_path: Path) -> ctypes.CDLL:
    path = tmp_path / "test.so"
    path.write_bytes(linked(TEXT, EXPORTS))
    return ctypes.CDLL(str(path))


def test_code_reaches_its_constants_and_variables(library: ctypes.CDLL) -> None:
    assert [library.square(i) for i in range(5)] == [0, 1, 4, 9, 16]
    assert [library.chosen(i) for i in range(7)] == [10, -7, 33, 16, 2, 1, 0]
    library.bump.restype = ctypes.c_int64
    assert [library.bump() for _ in range(3)] == [41, 83, 126]


def test_imported_functions_are_called(library: ctypes.CDLL) -> None:
    to = ctypes.create_string_buffer(6)
    library.moved.restype = ctypes.c_int64
    (ctypes.c_int64 * 2).in_dll(library, "shared")[0] = 1 << 40
    assert library.moved(to, ctypes.c_int64(6)) == 1 << 40
    assert to.value == b"hello"
    library.rest.restype, library.rest.argtypes = ctypes.c_double, (ctypes.c_double,) * 2
    assert library.rest(7.5, 2.0) == 1.5


def test_tables_hold_addresses(library: ctypes.CDLL) -> None:
    table = (ctypes.c_void_p * 3).in_dll(library, "table")
    square = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(table[0] or 0)
    assert square(3) == 9
    assert ctypes.string_at(table[2] or 0) == b"ello"


def test_nothing_can_be_written_and_executed(tmp_path: Path, library: ctypes.CDLL) -> None:
    assert library.square(2) == 4
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "test.so" in line]
    rights = [line.split()[1] for line in lines if str(tmp_path) in line]
    assert rights
    assert not [each for each in rights if "w" in each and "x" in each]
    table = ctypes.addressof((ctypes.c_void_p * 3).in_dll(library, "table"))
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    sealed = [line for line, (low, high) in zip(lines, spans, strict=True) if low <= table < high]
    assert sealed[0].split()[1].startswith("r--")


def test_the_same_code_links_to_the_same_bytes() -> None:
    assert linked(TEXT, EXPORTS) == linked(TEXT, EXPORTS)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf here")
def test_other_tools_read_it(tmp_path: Path) -> None:
    path = tmp_path / "test.so"
    path.write_bytes(linked(TEXT, EXPORTS))
    done = subprocess.run(
        ["readelf", "--wide", "-a", str(path)], capture_output=True, text=True, check=True
    )
    assert not done.stderr, done.stderr
    assert "R_X86_64_GLOB_DAT" in done.stdout
    assert "R_X86_64_RELATIVE" in done.stdout
    for name in EXPORTS:
        assert f" {name}\n" in done.stdout
    assert "libc.so.6" in done.stdout


def test_what_nobody_provides_is_refused() -> None:
    text = "declare void @system()\ndefine void @f() {\n call void @system()\n ret void\n}"
    with pytest.raises(InternalError, match="system"):
        linked(text, ("f",))
    with pytest.raises(InternalError, match="missing"):
        linked("define void @f() { ret void }", ("f", "missing"))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"not an object at all" * 10])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(InternalError, match="ELF"):
        read_object(data)


def test_an_empty_module_links(tmp_path: Path) -> None:
    path = tmp_path / "test.so"
    path.write_bytes(linked("@empty = constant [0 x ptr] []", ("empty",)))
    assert ctypes.CDLL(str(path)).empty is not None
