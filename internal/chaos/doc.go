// Package chaos breaks the whole of it: real processes that are killed, a network that cuts connections at any byte, and both ends of
// the wire as users run them. What is left is compared with what the downstream executed.
//
// The tests are small by default. CHAOS_FULL=1 gives the full sizes, which take some minutes:
//
//	CHAOS_FULL=1 go test -timeout 20m -v ./internal/chaos
package chaos
