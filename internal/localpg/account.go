package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// nobody is the account of a server started by root on a machine without a user "postgres".
const nobody = 65534

// account is who the server runs as. The zero value is ourselves; PostgreSQL refuses to run as root.
type account struct {
	other    bool
	uid, gid uint32
}

func serverAccount() account {
	if os.Geteuid() != 0 {
		return account{}
	}
	if u, err := user.Lookup("postgres"); err == nil {
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return account{other: true, uid: uint32(uid), gid: uint32(gid)}
		}
	}
	return account{other: true, uid: nobody, gid: nobody}
}

// attributes put a process into a session of its own (a Ctrl-C at the terminal does not reach it), under this account,
// with a signal at our death where the system can do that.
func (a account) attributes(atOurDeath syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true, Credential: a.credential()}
	dieWith(attr, atOurDeath)
	return attr
}

// credential is nil for ourselves.
func (a account) credential() *syscall.Credential {
	if !a.other {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

func (a account) String() string {
	if !a.other {
		return "ourselves"
	}
	return fmt.Sprintf("user %d", a.uid)
}

// own gives a file to the account.
func (a account) own(path string) error {
	if !a.other {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// enters reports the first folder on the way to dir that the account may not pass, as an error. It looks at the mode
// bits only.
func (a account) enters(dir string) error {
	if !a.other {
		return nil
	}
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		shift := 0
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == a.uid {
			shift = 6
		} else if ok && st.Gid == a.gid {
			shift = 3
		}
		if info.Mode().Perm()>>shift&1 == 0 {
			return fmt.Errorf("%s may not enter %s (mode %04o)", a, dir, info.Mode().Perm())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// tempDirs are the folders in which a server's directory may be made. TMPDIR of root can lie below a folder closed to
// the server's account, so root has more than one.
func tempDirs(a account) []string {
	dirs := []string{os.TempDir()}
	if a.other {
		dirs = append(dirs, "/tmp", "/var/tmp")
	}
	return dirs
}

// usableTemp is the first of the folders that is there and that the account may enter, as an absolute path without
// symbolic links.
func usableTemp(dirs []string, a account) (string, error) {
	var errs []error
	for _, dir := range dirs {
		dir, err := filepath.Abs(dir)
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err == nil {
			err = a.enters(dir)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no folder for a local PostgreSQL, set TMPDIR to one that its user may enter: %w", errors.Join(errs...))
}
