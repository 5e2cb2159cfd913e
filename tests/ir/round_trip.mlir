// RUN: irc opt %s | irc opt - | filecheck %s
// RUN: irc opt %s --split-input-file --verify-diagnostics | filecheck %s --check-prefix=EACH
// RUN: not irc opt %s -p no-such-pass 2>&1 | filecheck %s --check-prefix=UNKNOWN

// CHECK: builtin.module {
// CHECK: }
// EACH: builtin.module
// UNKNOWN: error[pass-unknown]: no pass 'no-such-pass'
builtin.module {
}
