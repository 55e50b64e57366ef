/* SPDX-License-Identifier: Apache-2.0 */
/*
 * environment.h — names that the children of this process inherit, put there while other threads read the environment.
 *
 * Called by plugin/process.c, under its join lock. setenv of a new name moves the list of the environment and frees the
 * old one, which a getenv of another thread may be walking (glibc before 2.41: SIGSEGV). Here a new name comes with a list
 * of its own, published by one store, and the list before it is never freed: a reader walks the one or the other, both
 * whole. A name that is there already gets its new value in place, which setenv does by one store of a pointer. Nothing is
 * ever taken out: that moves entries, and a reader may miss one that stays.
 *
 * Threads that change the environment meanwhile: the first way finds them out and begins again, the second one has glibc's
 * lock.
 */
#ifndef MOOR_ENVIRONMENT_H
#define MOOR_ENVIRONMENT_H

/* 0, or -1 without memory: nothing has changed then. */
int moor_environment_put(const char *name, const char *value);

#endif
