package receipt

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

const maxToken = 64 << 10

// readToken reads a bearer token. Only a regular file is read, as a pipe could block for ever. No error shows
// what is in the file.
func readToken(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("reading the bearer token: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("bearer token file %q is not a regular file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("reading the bearer token: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	token, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("reading the bearer token: %w", err)
	}
	if len(token) > maxToken {
		return "", fmt.Errorf("bearer token file %q is larger than %d bytes", file, maxToken)
	}
	token = bytes.TrimRight(token, "\r\n")
	if len(token) == 0 {
		return "", fmt.Errorf("bearer token file %q is empty", file)
	}
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return "", fmt.Errorf("bearer token file %q holds white space, a control character or non-ASCII text inside the token", file)
		}
	}
	return string(token), nil
}
