// Package secretfile reads the small files that hold passwords, tokens and keys. Its errors say what is wrong with the file and
// neither its name, which the caller knows, nor anything of what is in it.
package secretfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
)

// MaxSize bounds a secret, in bytes.
const MaxSize = 64 << 10

// Open opens a regular file. It refuses pipes and devices before it opens them, for opening one may block for ever.
func Open(name string) (*os.File, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, Trouble(err)
	case info.IsDir():
		return nil, errors.New("is a directory; name a file")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, Trouble(err)
	}
	return f, nil
}

// Read returns the content without the newline at its end. A file without content is refused.
func Read(name string) (string, error) {
	f, err := Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	switch {
	case err != nil:
		return "", Trouble(err)
	case len(data) > MaxSize:
		return "", errors.New("is larger than 64 KiB; is it the right file?")
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if secret == "" {
		return "", errors.New("is empty; write the value into it")
	}
	return secret, nil
}

// ReadToken is Read for a bearer token, which stands in an HTTP header: printable ASCII without white space.
func ReadToken(name string) (string, error) {
	token, err := Read(name)
	if err != nil {
		return "", err
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", errors.New("holds white space, a control character or non-ASCII text inside the token")
		}
	}
	return token, nil
}

// Trouble drops the operation and the path from an error of os, which the caller names already.
func Trouble(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("does not exist; check the path (relative paths start at the working directory)")
	}
	return errors.New("cannot be read: " + err.Error())
}
