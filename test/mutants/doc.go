// Command mutants breaks the protocol on purpose, one fault at a time, and asks the test suites whether they notice.
//
// A mutant is one replacement in one file. It is compiled in place of the file with the go command's -overlay, so the tree
// itself is never changed. A mutant is killed when one of its suites fails, and survives when all of them pass. The program
// prints a line for each mutant with the test that killed it, and exits with 1 if one survives or does not build.
package main
