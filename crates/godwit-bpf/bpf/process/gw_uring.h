/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Files that an io_uring holds. A ring may have the only reference to a listener or
 * to a connection (IORING_REGISTER_FILES, direct descriptors), so that the table of
 * descriptors does not show it. The kernel closes these files some time after the
 * last descriptor of the ring itself is closed.
 */
#ifndef GW_URING_H
#define GW_URING_H

#include "process/gw_process.h"

/* io_uring/rsrc.h, Linux 6.13 */
struct io_rsrc_node {
	unsigned long file_ptr; /* a struct file, and flags in the low bits */
} __attribute__((preserve_access_index));

struct io_rsrc_data {
	unsigned int nr;
	struct io_rsrc_node **nodes;
} __attribute__((preserve_access_index));

/* include/linux/io_uring_types.h */
struct io_file_table {
	struct io_rsrc_data data;
	unsigned long *bitmap;
} __attribute__((preserve_access_index));

struct io_ring_ctx {
	struct io_file_table file_table;
	struct mm_struct *mm_account; /* of the process that made the ring */
} __attribute__((preserve_access_index));

/* before Linux 6.13: an array of words like `file_ptr` */
struct io_file_table___words {
	unsigned long *files;
	unsigned long *bitmap;
} __attribute__((preserve_access_index));

struct io_ring_ctx___words {
	struct io_file_table___words file_table;
	unsigned int nr_user_files;
} __attribute__((preserve_access_index));

#define GW_FILE_FLAGS 7ul /* of `file_ptr` */
#define GW_ANONYMOUS_MODE 0600 /* fs/anon_inodes.c */

/* May it be a ring, by the mode of its inode? */
static __always_inline bool gw_is_anonymous(__u32 mode)
{
	return (mode & 07777) == GW_ANONYMOUS_MODE;
}

static __always_inline bool gw_is_ring(struct file *file)
{
	const char ring[8] = "[io_urin";
	const unsigned char *name;
	__u64 found = 0;

	name = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	bpf_probe_read_kernel(&found, sizeof(found), name);
	return found == *(const __u64 *)ring;
}

/*
 * Does the ring end with the process? Its memory is mapped, and each mapping refers to
 * its file: so it is the process that has made it, or there is no other reference.
 */
static __always_inline bool gw_ends_with(struct file *ring,
					 const struct mm_struct *mm)
{
	struct io_ring_ctx *ctx = BPF_CORE_READ(ring, private_data);

	if (gw_references(ring) <= 1)
		return true;
	return mm && BPF_CORE_READ(ctx, mm_account) == mm;
}

static __always_inline bool gw_files_of_ring(struct file *ring,
					     struct gw_files *files)
{
	struct io_ring_ctx *ctx = BPF_CORE_READ(ring, private_data);
	struct io_ring_ctx___words *old = (void *)ctx;

	files->is_ring = true;
	if (bpf_core_field_exists(ctx->file_table.data)) {
		files->slots = BPF_CORE_READ(ctx, file_table.data.nodes);
		files->count = BPF_CORE_READ(ctx, file_table.data.nr);
		files->open = BPF_CORE_READ(ctx, file_table.bitmap);
	} else {
		files->slots = BPF_CORE_READ(old, file_table.files);
		files->count = BPF_CORE_READ(old, nr_user_files);
		files->open = BPF_CORE_READ(old, file_table.bitmap);
	}
	return files->slots && files->open;
}

static __always_inline struct file *gw_file_at(const struct gw_files *files,
					       __u32 index)
{
	struct io_rsrc_node *node = NULL;
	unsigned long word = 0;

	bpf_probe_read_kernel(&word, sizeof(word),
			      (unsigned long *)files->slots + index);
	if (!files->is_ring || !word)
		return (struct file *)word;
	if (bpf_core_field_exists(node->file_ptr)) {
		node = (void *)word;
		word = BPF_CORE_READ(node, file_ptr);
	}
	return (struct file *)(word & ~GW_FILE_FLAGS);
}

#endif /* GW_URING_H */
