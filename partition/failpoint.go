package partition

import (
	"os"
	"slices"
	"syscall"
)

// atFailpoint is called at each of Failpoints. It is nil but in a build with the tag failpoint, and in tests.
var atFailpoint func(name string)

func failpoint(name string) {
	if atFailpoint != nil {
		atFailpoint(name)
	}
}

// killed kills the process, as a crash would, where RECONCILER_FAILPOINT says.
func killed(name string) {
	if !slices.Contains(Failpoints, name) {
		panic("failpoint " + name + " is not listed in Failpoints")
	}
	if os.Getenv("RECONCILER_FAILPOINT") == name {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // it ends here
	}
}

// Failpoints are the places where a build with the tag failpoint can be killed. Whatever that interrupts has to be in order after the
// next run.
var Failpoints = []string{
	"premake:begun",
	"premake:aside",
	"check:begun",
	"frozen:journalled",
	"freeze:begun",
	"freeze:locked",
	"freeze:done",
	"frozen:done",
	"frozen:ended",
	"exported:journalled",
	"export:begun",
	"export:streaming",
	"export:before-rename",
	"export:after-rename",
	"export:before-manifest",
	"export:after-manifest",
	"exported:done",
	"exported:ended",
	"verified:journalled",
	"verify:read",
	"verified:done",
	"verified:ended",
	"watermark:journalled",
	"watermark:first",
	"watermark:done",
	"watermark:ended",
	"detached:journalled",
	"detach:begun",
	"detach:done",
	"detached:done",
	"detached:ended",
	"dropped:journalled",
	"drop:claims",
	"drop:dropped",
	"dropped:done",
	"dropped:ended",
	"reattached:journalled",
	"reattach:alone",
	"reattached:done",
	"reattached:ended",
	"restored:journalled",
	"restore:loaded",
	"restore:attached",
	"restored:done",
	"restored:ended",
}
