import torch, time, sys, copy, statistics as st, contextlib, json
from equipool import *
torch.manual_seed(0)
dev='cuda'
def build(B, T=15):
    g=torch.Generator().manual_seed(1)
    counts=torch.randint(13,40,(B,),generator=g); index=torch.arange(B).repeat_interleave(counts).to(dev)
    x=torch.randn(len(index),300,generator=g).to(dev)
    l=EquilibriumAggregation(300,300,potential=ResNetPotential(300,300,(600,300,32)),num_steps=T).to(dev)
    return x,index,l
def stepper(l,x,index,B,amp=False):
    x=x.clone().requires_grad_(); w=torch.randn(B,300,device=dev)
    def f():
        with (torch.autocast('cuda',torch.bfloat16) if amp else contextlib.nullcontext()):
            y=l(x,index,dim_size=B)
        y.backward(w.to(y.dtype))
    return f,x,w
def timeit(f,n=20,warm=3):
    for _ in range(warm): f()
    torch.cuda.synchronize(); ts=[]
    for _ in range(n):
        a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b))
    return st.median(ts), min(ts), max(ts)
def capture(f):
    s=torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3): f()
    torch.cuda.synchronize(); import gc; gc.collect()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): f()
    return g.replay
def rel(a,b): return ((a.double()-b.double()).norm()/b.double().norm()).item()
for B in map(int,sys.argv[1].split(',')):
    x,index,l=build(B)
    ref=copy.deepcopy(l).double(); ref.potential.factored=False
    if B<=256 and 'check' in sys.argv:
        f,xr,w=stepper(ref,x.double(),index,B); torch.manual_seed(5); w.copy_(torch.randn_like(w)); ref.zero_grad(); f(); yr=ref(x.double(),index,dim_size=B).detach(); f=None
        for mode in ('fp32','tf32','bf16','torch'):
            torch.backends.cuda.matmul.allow_tf32 = mode=='tf32'
            import equipool.ops.resnet_gradient.binding as b
            old=b.kernels_serve
            if mode=='torch': b.kernels_serve=lambda x: False
            l.zero_grad(); f2,x2,w2=stepper(l,x,index,B,amp=mode=='bf16'); w2.copy_(w); f2()
            with (torch.autocast('cuda',torch.bfloat16) if mode=='bf16' else contextlib.nullcontext()), torch.no_grad(): yy=l(x,index,dim_size=B)
            print(B,mode,'y',rel(yy,yr),'dx',rel(x2.grad,xr.grad),'dp',max((rel(p.grad,q.grad),n) for (n,p),q in zip(l.named_parameters(),ref.parameters())),flush=True)
            b.kernels_serve=old
    for mode in ('fp32','tf32','bf16'):
        torch.backends.cuda.matmul.allow_tf32 = mode=='tf32'
        f,x2,w2=stepper(l,x,index,B,amp=mode=='bf16'); l.zero_grad()
        f(); torch.cuda.synchronize(); torch.cuda.reset_peak_memory_stats(); base=torch.cuda.memory_allocated(); f(); torch.cuda.synchronize(); mem=torch.cuda.max_memory_allocated()
        print(B,mode,'eager',['%.3f'%v for v in timeit(f)],'peak MiB',mem/2**20,'base',base/2**20,flush=True)
        try: print(B,mode,'captured',['%.3f'%v for v in timeit(capture(f))],flush=True)
        except Exception as e: print('capture failed',repr(e)[:500])
        if 'prof' in sys.argv and mode!='fp32':
            from torch.profiler import profile, ProfilerActivity
            r=f if B>8 else f
            with profile(activities=[ProfilerActivity.CUDA]) as p: r(); torch.cuda.synchronize()
            rows=sorted(p.key_averages(),key=lambda e:-e.self_device_time_total)[:16]
            for e in rows: print('   %8.0f us %5d %s'%(e.self_device_time_total,e.count,e.key[:100]))
    if 'pyg' in sys.argv:
        from torch_geometric.nn.aggr import EquilibriumAggregation as P
        torch.backends.cuda.matmul.allow_tf32=False
        p=P(300,300,[600,300,32],grad_iter=15).to(dev); xx=x.clone().requires_grad_()
        def fp(): p(xx,index,dim_size=B).sum().backward()
        print(B,'pyg',timeit(fp,5,2),flush=True)
