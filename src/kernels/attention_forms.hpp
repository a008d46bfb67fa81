// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two forms of attention, between which attention.cpp chooses.

#include <p3d/kernels/attention.hpp>

namespace p3d::kernels {

// Declares one form; the arguments are those of attention.hpp. The form `gemm` runs on devices, and in tests of the
// portable form. The form `blas` runs on the host.
#define P3D_ATTENTION_FORM(form)                                                                                     \
  namespace form {                                                                                                   \
  template <class S, class O = S>                                                                                    \
  void attention_forward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,                 \
                         AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,    \
                         Store store, HeadRows<O> out, View1<Acc<S>> lse);                                           \
  template <class S, class D = S>                                                                                    \
  void attention_backward(ExecSpace const& exec, AttentionShape const& shape, Dropout const& dropout,                \
                          AttentionScratch scratch, HeadRows<S const> q, HeadRows<S const> k, HeadRows<S const> v,   \
                          HeadRows<S const> dout, View1<Acc<S> const> lse, View1<Acc<S> const> delta, Store store_q, \
                          HeadRows<D> dq, Store store_kv, HeadRows<D> dk, HeadRows<D> dv,                            \
                          WholeOutput<S> const& whole = {});                                                         \
  }
P3D_ATTENTION_FORM(gemm)
P3D_ATTENTION_FORM(blas)
#undef P3D_ATTENTION_FORM

}  // namespace p3d::kernels
