package processruntime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// uses is a directory in which it stands which device nodes the processes of a container have: a file
// for each container that has any, from its start until every process of it is dead. Hardware sees who
// opens a device node; there are none here that could be opened, so what stands for hardware reads
// this. It goes by what the runtime was told to inject, and not by variables of the container.
//
// Without a directory nothing is written.
type uses struct {
	directory string
}

type use struct {
	Group       int      `json:"group"` // the process group, as this runtime's namespace counts
	DeviceNodes []string `json:"deviceNodes"`
}

func newUses(directory string) (uses, error) {
	if directory == "" {
		return uses{}, nil
	}
	return uses{directory}, os.MkdirAll(directory, 0o755)
}

func (u uses) file(container string) string {
	return filepath.Join(u.directory, container+".json")
}

func (u uses) begin(c *container) error {
	if u.directory == "" || len(c.Injected.DeviceNodes) == 0 {
		return nil
	}
	return writeWhole(u.file(c.ID), use{c.PID, c.Injected.DeviceNodes})
}

// end is for a container of which nothing lives. That there is no file is no error.
func (u uses) end(c *container) error {
	if u.directory == "" {
		return nil
	}
	err := os.Remove(u.file(c.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
