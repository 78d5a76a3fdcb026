package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	fetchVersion = embeddedpostgres.V18
	// fetchLimit bounds the download of about 15 MB and the wait for another process that is at it.
	fetchLimit = 10 * time.Minute
	lockPoll   = 100 * time.Millisecond
	fetchTemp  = "fetch-"
)

// cacheDirs are the folders for fetched binaries. The cache of root is usually closed to the server's account, so root
// has a second one.
func cacheDirs(a account) []string {
	var dirs []string
	if user, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(user, "reconciler", "postgres"))
	}
	if a.other {
		dirs = append(dirs, "/var/cache/reconciler/postgres")
	}
	return dirs
}

// fetched is the folder of binaries in the cache, which are downloaded if they are not there yet. Processes that need
// them at the same time wait for the first; what a killed one left is removed by the next.
func (s search) fetched(ctx context.Context, a account) (string, error) {
	cache, err := usableCache(s.caches, a)
	if err != nil {
		return "", err
	}
	bin := filepath.Join(cache, string(fetchVersion), "bin")
	if f, err := inspect(ctx, bin, a); err == nil {
		return f.bin, nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if f, err := inspect(ctx, bin, a); err == nil {
		return f.bin, nil
	}
	if err := s.fetch(ctx, cache, a); err != nil {
		return "", fmt.Errorf("fetching PostgreSQL %s: %w", fetchVersion, err)
	}
	f, err := inspect(ctx, bin, a)
	return f.bin, err
}

// fetch needs the lock. The tree gets its final name only when its server was seen to run.
func (s search) fetch(ctx context.Context, cache string, a account) error {
	stale, err := filepath.Glob(filepath.Join(cache, fetchTemp+"*"))
	if err != nil {
		return err
	}
	for _, dir := range stale {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	temp, err := os.MkdirTemp(cache, fetchTemp)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp) //nolint:errcheck // the next fetch tries again
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	tree := filepath.Join(temp, "tree")
	result := make(chan error, 1)
	go func() { result <- s.extract(temp, tree) }()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err = <-result:
	}
	if _, unusable := inspect(ctx, filepath.Join(tree, "bin"), a); unusable != nil {
		return errors.Join(err, unusable)
	}
	target := filepath.Join(cache, string(fetchVersion))
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	return os.Rename(tree, target)
}

// extract has the library download, verify and unpack into tree, and nothing else. Its one entry point goes on to
// initdb and pg_ctl, which refuse root; so it is given a data directory that ends in a dot. Go refuses to remove such a
// path, the library clears the data directory before initdb, and so it always returns with an error between the two.
// Whether the binaries came is therefore told by looking at them. The library knows no context: given up, it ends with
// its transfer.
func (s search) extract(temp, tree string) error {
	config := embeddedpostgres.DefaultConfig().
		Version(fetchVersion).
		Port(0).
		CachePath(filepath.Join(temp, "archive")).
		RuntimePath(filepath.Join(temp, "run")).
		BinariesPath(tree).
		DataPath(temp + "/data/.").
		Logger(nil)
	if s.repository != "" {
		config = config.BinaryRepositoryURL(s.repository)
	}
	before := libraryLogs()
	defer func() {
		for _, log := range libraryLogs() {
			if info, err := os.Stat(log); err == nil && info.Size() == 0 && !slices.Contains(before, log) {
				_ = os.Remove(log)
			}
		}
	}()
	server := embeddedpostgres.NewDatabase(config)
	if err := server.Start(); err != nil {
		return err
	}
	return server.Stop()
}

// libraryLogs are the files the library makes for its log and never removes.
func libraryLogs() []string {
	logs, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*")) // the pattern is well-formed
	return logs
}

// usableCache makes the first of the folders that the account can reach.
func usableCache(dirs []string, a account) (string, error) {
	errs := []error{errors.New("no folder to keep a fetched PostgreSQL in")}
	for _, dir := range dirs {
		above := dir
		for !exists(above) && above != filepath.Dir(above) {
			above = filepath.Dir(above)
		}
		err := a.enters(above)
		if err == nil {
			err = os.MkdirAll(dir, 0o755)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// lock waits until no other process holds the file. The kernel gives it back when the holder dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for %s: %w", path, context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}
