/* SPDX-License-Identifier: Apache-2.0 */
/*
 * locks.h — who is alive in an instance: process-owned fcntl locks on the file `locks` of its directory.
 *
 * Called by plugin/instance.c, plugin/process.c and client/. Byte s is locked by the process in slot s of the shared
 * state; every process that belongs to the server also holds a shared lock on byte MOOR_LOCKS_SERVER, so "does this server
 * live" is one question. The kernel gives the locks up when the process ends, however it ends; a forked child has none.
 *
 * The trap: closing *any* descriptor of the file drops all of the process' locks on it. So a process has at most one
 * descriptor per such file, kept in a registry here, and nothing else in Moor opens a file of that name. A mutex protects
 * the registry; system calls on local files are made under it, never a socket or a call back.
 */
#ifndef MOOR_LOCKS_H
#define MOOR_LOCKS_H

#include <sys/types.h>

#include "error.h"

enum { MOOR_LOCKS_SLOTS = 256, MOOR_LOCKS_SERVER = 4096 };

/* Takes a slot of the instance whose directory is dir_fd (the process' own again, when it has one; a
 * server's process makes the file when it is absent). server: this process is part of the server, not a visitor. `dir` is for messages. Ended by moor_locks_leave.
 * avoid: NULL, or [MOOR_LOCKS_SLOTS], 1 = taken only when nothing else is free: the slot of a process that died, whose
 * traces in the state (a ticket, an arrival) must not be taken for the newcomer's. */
moor_status moor_locks_join(int dir_fd, const char *dir, int server, const uint8_t *avoid, int *locks_fd,
                            uint32_t *slot);
void moor_locks_leave(int locks_fd, int server);

/* 1 when the process in `slot` lives. Our own slot: 1. */
int moor_locks_slot_alive(int locks_fd, uint32_t slot);

/* 1 when a process of the server lives, 0 when none does or the directory has no such file. `others`: not counting us. */
int moor_locks_server_alive(int dir_fd);
/* The same for who has joined, also when the file has lost its name. */
int moor_locks_server_lives(int locks_fd);
/* *who: one that does, 0 when it cannot be named (another PID namespace). */
int moor_locks_other_server(int locks_fd, pid_t *who);
/* Many slots at once, without joining: where alive[s] is not 0 it is asked for, and stays 1 when the slot's byte is held (by another
 * process or us). A system call for each. */
void moor_locks_slots_alive(int dir_fd, uint8_t alive[MOOR_LOCKS_SLOTS]);

#endif
