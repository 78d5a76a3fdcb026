package config

import (
	"errors"
	"io"
	"os"
	"strings"
)

// largestSecret bounds a file that holds a secret, in bytes.
const largestSecret = 64 << 10

// checkFile checks that a file named in the configuration is there and can be
// read. Its user reads it later, so that a rotated secret is picked up.
func checkFile(at path, name string, r *report) {
	if name == "" {
		return
	}
	f, err := openRegular(name)
	if err != nil {
		r.wrong(at, nil, "%s %s", printable(name), err)
		return
	}
	_ = f.Close()
}

// readSecret reads a small file without the newline at its end.
func readSecret(name string) (string, error) {
	f, err := openRegular(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, largestSecret+1))
	switch {
	case err != nil:
		return "", readingError(err)
	case len(data) > largestSecret:
		return "", errors.New("is larger than 64 KiB; is it the right file?")
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if secret == "" {
		return "", errors.New("is empty; write the value into it")
	}
	return secret, nil
}

// openRegular refuses pipes and devices before it opens them, for opening one may block for ever.
func openRegular(name string) (*os.File, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, readingError(err)
	case info.IsDir():
		return nil, errors.New("is a directory; name a file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, readingError(err)
	}
	return f, nil
}
