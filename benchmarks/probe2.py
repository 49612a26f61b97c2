import torch, traceback, gc
exec(open('benchmarks/probe.py').read().split("for B in map")[0])
x,index,l=build(8)
def cap(f,name):
    try:
        s=torch.cuda.Stream()
        with torch.cuda.stream(s):
            for _ in range(2): f()
        torch.cuda.synchronize(); gc.collect()
        g=torch.cuda.CUDAGraph()
        with torch.cuda.graph(g): f()
        g.replay(); torch.cuda.synchronize(); print(name,'ok',timeit(g.replay),flush=True)
    except Exception: traceback.print_exc()
import sys
if sys.argv[1]=='fwd':
    def f():
        with torch.no_grad(): l(x,index,dim_size=8)
    cap(f,'nograd fwd')
if sys.argv[1]=='fwd2': cap(lambda: l(x,index,dim_size=8),'fwd')
if sys.argv[1]=='both':
    f,_,_=stepper(l,x,index,8); cap(f,'both')
if sys.argv[1]=='torch':
    import equipool.ops.resnet_gradient.binding as b; b.kernels_serve=lambda x: False
    f,_,_=stepper(l,x,index,8); cap(f,'torch both')
