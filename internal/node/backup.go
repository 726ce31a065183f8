package node

import (
	"context"
	"errors"
	"io"
)

// backup writes the present state to somebody, as a snapshot, while changes go on.
func (n *node) backup(ctx context.Context, to io.Writer) error {
	snapshot, _, err := n.db.Snapshot()
	if err != nil {
		return err
	}
	_, err = io.Copy(to, readUntil{ctx, snapshot})
	return errors.Join(err, snapshot.Close())
}

// readUntil reads until a context ends.
type readUntil struct {
	ctx context.Context
	io.Reader
}

func (r readUntil) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
