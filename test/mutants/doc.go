// Command mutants breaks the protocol on purpose, one fault at a time, and asks the test suites whether they notice.
//
// A mutant is one replacement in one file. It is compiled in place of the file with the go command's -overlay, so the
// tree itself is never changed. A mutant is killed when a test of its suites fails twice and passes without the
// mutant, and survives when all suites pass. What killed a mutant the last time is in docs/MUTANTS.md and is tried
// first, so a run of the whole table takes little more than compiling. The program prints a line for each mutant with
// the test that killed it, and fails if one survives or does not build.
package main
