/* SPDX-License-Identifier: Apache-2.0 */
/* model_parts.h — between the files of the model. */
#ifndef MOOR_TEST_MODEL_PARTS_H
#define MOOR_TEST_MODEL_PARTS_H

#include "model.h"

m_record *m_newest(model *m, uint32_t name, int unsealed);
m_record *m_create(model *m, uint32_t name);
void m_give_up_if_done(m_record *r);
void m_append(m_record *r, m_row row);
void m_append_missing(m_record *r, uint64_t n, uint32_t reasons);
void m_touch(model *m, m_record *r);
void m_finalise(model *m, m_record *r, uint64_t rows, uint32_t flags);
void m_release_owner(model *m, m_record *r);
void m_add_alias(m_record *r, uint32_t alias, uint32_t index);

#endif
