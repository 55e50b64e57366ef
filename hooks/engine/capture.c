/* SPDX-License-Identifier: Apache-2.0 */
#include "capture.h"

#include <string.h>

/* The part of the DLPack ABI (dmlc/dlpack, v0.x layout, capsule "dltensor") that a host tensor needs. */
typedef struct {
    int32_t device_type, device_id;
} dl_device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_INT = 0, DL_UINT = 1 };

static struct {
    int state;
    moor_step_begin_fn begin;
    void *user;
    const moor_jp *jp;
    PyObject *to_dlpack; /* torch's own function, looked up once */
} cap;

void moor_capture_attach(const moor_jp *jp)
{
    cap.jp = jp;
}

void moor_capture_expect(moor_step_begin_fn begin, void *user)
{
    cap.begin = begin;
    cap.user = user;
    cap.state = MOOR_STEP_EXPECTED;
}

int moor_capture_state(void)
{
    return cap.state;
}

void moor_capture_done(void)
{
    cap.state = MOOR_STEP_NONE;
}

int moor_capture_settle(void)
{
    if (cap.state == MOOR_STEP_EXPECTED) {
        cap.state = MOOR_STEP_SKIPPED; /* also while `begin` runs: a failing one must not be tried by every layer */
        if (cap.begin(cap.user) == 0)
            cap.state = MOOR_STEP_OPEN;
        else
            moor_jp_failed(cap.jp, "beginning a step");
    }
    return cap.state;
}

static PyObject *tensor_to_capsule(PyObject *tensor)
{
    if (!cap.to_dlpack) {
        PyObject *module = PyImport_ImportModule("torch.utils.dlpack");
        if (!module)
            return NULL;
        cap.to_dlpack = PyObject_GetAttrString(module, "to_dlpack");
        Py_DECREF(module);
        if (!cap.to_dlpack)
            return NULL;
    }
    return PyObject_CallFunctionObjArgs(cap.to_dlpack, tensor, NULL);
}

static uint32_t dtype_of(dl_dtype dtype)
{
    if (dtype.lanes != 1)
        return 0;
    if (dtype.code == DL_UINT)
        return dtype.bits == 8    ? MOOR_DTYPE_U8
               : dtype.bits == 16 ? MOOR_DTYPE_U16
               : dtype.bits == 32 ? MOOR_DTYPE_I32
                                  : 0;
    if (dtype.code == DL_INT)
        return dtype.bits == 16   ? MOOR_DTYPE_I16
               : dtype.bits == 32 ? MOOR_DTYPE_I32
               : dtype.bits == 64 ? MOOR_DTYPE_I64
                                  : 0;
    return 0;
}

/* Fills *ids from the capsule's tensor; 0, or -1 with a Python error that names what is wrong. */
static int ids_of(PyObject *capsule, moor_ids *ids)
{
    const dl_tensor *t = PyCapsule_GetPointer(capsule, "dltensor");
    if (!t)
        return -1;
    if (t->device.device_type != DL_CPU && t->device.device_type != DL_CUDA_HOST) {
        PyErr_Format(PyExc_ValueError, "expert ids are on device type %d, not in host memory",
                     (int)t->device.device_type);
        return -1;
    }
    uint32_t dtype = dtype_of(t->dtype);
    if (t->ndim != 2 || !dtype || t->shape[0] > UINT32_MAX || t->shape[1] > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "expert ids have %d dimensions, dtype code %d of %d bits: expected [tokens, top_k] integers",
                     (int)t->ndim, (int)t->dtype.code, (int)t->dtype.bits);
        return -1;
    }
    ids->data = (const char *)t->data + t->byte_offset;
    ids->dtype = dtype;
    ids->tokens = (uint32_t)t->shape[0];
    ids->top_k = (uint32_t)t->shape[1];
    ids->stride_token = t->strides ? t->strides[0] : t->shape[1];
    ids->stride_k = t->strides ? t->strides[1] : 1;
    return 0;
}

static int capture_open_step(uint32_t column, PyObject *tensor)
{
    PyObject *capsule = tensor_to_capsule(tensor);
    if (!capsule)
        return -1;
    moor_ids ids = {0};
    int result = ids_of(capsule, &ids);
    if (result == 0) {
        moor_runtime *rt = moor_runtime_get();
        moor_status status = rt->api->capture(rt->store, column, &ids, NULL);
        if (status) {
            moor_runtime_raise(status, "capture");
            result = -1;
        }
    }
    Py_DECREF(capsule); /* not consumed: its destructor gives the tensor back */
    return result;
}

int moor_capture_tensor(uint32_t column, PyObject *tensor)
{
    if (cap.state == MOOR_STEP_NONE || cap.state == MOOR_STEP_SKIPPED)
        return 0;
    moor_jp_fired(cap.jp);
    if (moor_capture_settle() != MOOR_STEP_OPEN)
        return PyErr_Occurred() ? -1 : 0;
    if (capture_open_step(column, tensor))
        return moor_jp_failed(cap.jp, "capture");
    return 0;
}

static PyObject *capture_py(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned int column;
    PyObject *tensor;
    if (!PyArg_ParseTuple(args, "IO:capture", &column, &tensor))
        return NULL;
    if (moor_capture_tensor(column, tensor))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *capture_call(PyObject *self, PyObject *tensor)
{
    unsigned long column = PyLong_AsUnsignedLong(self);
    if (column == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (moor_capture_tensor((uint32_t)column, tensor))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef capture_def = {"capture", capture_call, METH_O,
                                  "Record one MoE layer's expert ids of the running step."};

PyObject *moor_capture_callable(uint32_t column)
{
    PyObject *self = PyLong_FromUnsignedLong(column);
    if (!self)
        return NULL;
    PyObject *callable = PyCFunction_NewEx(&capture_def, self, NULL);
    Py_DECREF(self);
    return callable;
}

PyObject *moor_capture_compiled(uint32_t column, PyObject *method)
{
    PyObject *module = PyImport_ImportModule("moor._torch");
    if (!module)
        return NULL;
    PyObject *callable = method ? PyObject_CallMethod(module, "bypass_fn", "IO", (unsigned int)column, method)
                                : PyObject_CallMethod(module, "capture_fn", "I", (unsigned int)column);
    Py_DECREF(module);
    return callable;
}

static PyMethodDef functions[] = {
    {"capture", capture_py, METH_VARARGS,
     "capture(column, topk_ids) -> None\n\nRecord one MoE layer's expert ids of the running step."},
    {NULL, NULL, 0, NULL},
};

int moor_py_capture_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
