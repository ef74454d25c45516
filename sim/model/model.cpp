// Explicit-state model checker for the admission/permit/release protocol (ARCHITECTURE.md, docs/adr).  See README.md.
#include <bits/stdc++.h>
using namespace std;
typedef uint8_t u8; typedef uint16_t u16; typedef uint64_t u64;
enum { NG=2, MP=5, NN=2, NPER=4, RM=2 };
enum { NONE=0, ADMIT=1, EVICT=2 };
enum { KL=1, KG=2, KN=4, KP=8, KO=16 };               // kinds a controller's cache may lag on: Ledger, Gang, NodeDevices, Pod, Node
struct Intent{u8 kind,att,ep,plan[RM],pod[RM],cl[RM];};      // plan = 1+node, pod = 1+index
struct Ledger{u8 ep; Intent in[NG];};
struct Gang{u8 ex,att,adm,fin,plan[RM],pod[RM],cl[RM],ep,patt,pplan[RM],ppod[RM],pcl[RM];}; // p...: the proposal, of attempt patt
struct Permit{u8 pod,swap,gang,att,wd;};
struct ND{u8 ex,uid,gen; Permit p[NPER]; u8 suid,sgen,held,ep,nuid,lost,aw;};   // nuid: the Node that it is about; aw: its driver has to answer first
struct Node{u8 uid,rdy,oos;};                         // uid 0: gone
struct Pod{u8 ex,gang,rank,stamp,gated,pin,node,del,term,swap;};
struct Api{Ledger l; Gang g[NG]; ND n[NN]; Pod p[MP]; Node o[NN];}; enum { OB=5+MP+NN };
struct View{u8 on,uid,gen; Permit p[NPER]; u8 pend,puid,pgen,pheld;};
struct Drv{u8 rec,auid,agen; View v[2];};
struct Ctl{u8 role,ep,frozen,vt[NG],kn,led[NN]; u8 st0,st1; Api snap;};  // led: the NodeDevices (UID) that it has led since it saw them
struct Kub{u8 kst,nv,infl,fl;};                       // kst 0 none,1 wants Prepare,2 prepared,3 container runs,4 stopped,5 done
enum { B_TAKE,B_CRASH,B_FREEZE,B_EV,B_FORCE,B_DELG,B_DELN,B_OWN,B_BYP,B_SWAP,B_DR,B_DU,B_DL,B_FIN,B_ZOM,B_LATE,B_CUT,B_OFF,B_NODEL,NB };
const char*BN[NB]={"take","crash","freeze","evict","force","delgang","delnd","owndel","bypass","swap","drvrestart","drvupdate","diskloss","finish","zombie","late","cut","off","nodedel"};
struct S{Api a; Drv d[NN]; Kub k[MP]; Ctl c[2]; u8 owner[NG],done[NG]; uint32_t stored[NG]; u8 bud[NB],viol; u8 down[NN],gone[NN],nseq[NN],al,alp,up;};
// down: 1 cut off from the API (what runs goes on), 2 switched off; gone: its Node was deleted, and its driver has not answered since; al, alp: what S1 allows
// ---- switches
enum { M_NONE,M_ACKFIRST,M_RELVANISH,M_NOUID,M_STAMPUNG,M_NOSTAMP,M_VOIDNOND,M_EVNOINT,M_PRECHECK,M_NOVIEW,M_LITCHARGE,M_UNPBUSY,M_UNGEARLY,
  M_NOCLAIM,M_UIDBLIND,M_NOPERMIT,M_ADMNOCAS,M_RELUNACK,M_VOIDNOGANG,M_PERMBEFORE,M_PUNSEEN,M_PNOCMP,M_PNONODES,M_PIGNORED,M_PCARRY,M_PUNSEENCMP,M_ABNOSTAMP,M_ABNOFENCE,M_EVFORGETS,
  M_LOSTUNACKED,M_LOSTPLANNED,M_LOSTTEAM,M_LOSTEARLY,M_LOSTNOEVICT,M_RETUNANSWERED,M_RETNOPERMITS,M_PROOFPOD,M_PROOFNODE,M_PROOFOLD,M_NDSTAYS,M_GONETEAM,M_UNPROVED,NM };
const char*MN[NM]={"none","ack-before-disk","release-on-vanished","no-uid-in-status","stamp-ungated","no-stamp-gated","void-without-nodedevices","evict-without-intent",
 "permit-before-wait-only","prepare-by-older-view","charge-literal","unprepare-with-process","ungate-before-plan","claim-uid-unchecked","uid-blind-ack","no-permit-check",
 "epoch-not-raised","release-withdrawn-unacked","void-without-gang","permits-before-gang","proposal-not-seen","proposal-not-compared","proposed-nodes-forgotten","lost-proposal-ignored","proposal-carried-uncommitted",
 "proposal-neither-seen-nor-compared","abandon-without-stamp","abandon-without-nodedevices","evicted-plan-forgotten",
 "lost-cleared-unacknowledged","lost-node-planned","lost-charged-to-team","lost-charge-before-mark","lost-gang-stays","returned-node-planned-unanswered","returned-node-forgets-permits",
 "vanished-pod-on-lost-node-is-proof","deleted-node-alone-is-proof","tainted-node-up-is-proof","nodedevices-of-gone-node-stay","gone-node-charged-to-team","permits-unproved"};
enum { F_STAYS=1,F_NDFIN=2,F_FENCE=4,F_RAISE=8,F_CGROUP=16,F_ACKMAX=32,F_CANCEL=64,F_PLANREC=128,F_TOUCH=256,F_BARE=512,F_LED=1024 };
int MUT=0,FIX=0,LIMIT=1,NODES=2,SZ[NG]={1,1}; bool LATE=false,live_mode=false,PROP=false,NOEVICT=false,BARE=false; bool CHK_S16=true,DEAD=false;
enum { V_OK,V_S1C,V_S1P,V_S2,V_S2R,V_S3,V_S3P,V_S4,V_S4M,V_S16U,V_S16D,V_S16W,V_S16L,V_LOSTPLAN,NV };
const char*VN[NV]={"ok","S1 charges over limit","S1 physical over limit","S2 process without charge","S2 prepared without charge","S3 unit used twice","S3 prepared without permit",
 "S4 ungate before plan stored","S4 two plans mixed","S16 ungate of an attempt already evicted","S16 stale leader deletes pod of live attempt","S16 stale leader withdraws permit of live attempt","S16 stale leader writes over newer attempt","S1 planned on a node that is lost"};
struct Lab{u8 k,a,b,c;};
enum { A_NONE,A_TAKE,A_EXIT,A_CRASH,A_FREEZE,A_UNFREEZE,A_MKGANG,A_ADMIT,A_GADM,A_VSTAMP,A_VGANG,A_VND,A_DROP,A_EVICT,A_ESTAMP,A_EGANG,A_PERMIT,A_UNGATE,A_WITHDRAW,A_DELPOD,A_FINGANG,
 A_RELEASE,A_ADOPT,A_MKND,A_WATCH,A_PERSIST,A_STATUS,A_LATEDISK,A_RECORD,A_CHECK,A_ANSWER,A_DRVRESTART,A_DRVUPDATE,A_DRVSTOP,A_DISKLOSS,A_KSTART,A_KKILL,A_KUNPREP,A_KEARLY,A_KDONE,A_KNOPREP,A_NV,A_FINISH,
 A_BIND,A_FORCE,A_DELG,A_DELN,A_OWNDEL,A_BYPASS,A_SWAP,A_RECREATE,A_GCGANG,A_ETOUCH,A_STARTLIMIT,A_GDELG,A_NDGONE,A_DGC,A_PROPOSE,A_ABSTAMP,A_ABTOUCH,A_LEFT,A_LED,A_LOST,A_FOUND,A_RENODE,A_NDEND,A_CUT,A_OFF,A_NRDY,A_BACK,A_OOS,A_UNOOS,A_NODEDEL,A_NODENEW,A_PODGC,NA };
const char*AN[NA]={"?","takeover(raise epoch)","stale leader exits (conflict/lease)","leader crashes","cache lags on","cache catches up","create Gang","Ledger: Admit","Gang: admitted","void: stamp gated pod","void: Gang att+1","void: touch ND",
 "Ledger: drop intent","Ledger: Evict","evict: stamp gated pod","evict: Gang att+1","ND: write permit","ungate pod","ND: withdraw permit","delete pod by UID","Gang: Finished","ND: RELEASE permit","ND: adopt held claim","create ND",
 "driver watch","driver: generation to disk, held computed","driver: status write (ack)","driver: generation to disk (late)","driver RECORDS claim","driver checks permit (early)","Prepare answered","driver restart","driver update: 2nd instance","driver instance stops",
 "checkpoint lost","container starts","container killed","Unprepare","Unprepare while container lives","pod object ends","kubelet drops pod before Prepare","process appears/disappears in NVML","pod succeeds","scheduler binds","user FORCE-deletes pod","user deletes Gang","admin deletes ND",
 "owner deleted","user BYPASSES gate","user SWAPS claim","owner recreates pod","Gang garbage-collected","evict: touch ND","start limit: Evict","-","ND gone (finalizer)","driver gives back orphan record","Gang: proposal","abandon: stamp gated pod","abandon: touch ND","Gang: attempt is left, att+1","Ledger: read, still leads",
 "ND: LOST","ND: lost no more","ND: Node was made again","delete ND","cut off from the API","switched off","Node: not Ready","up again","Node: out-of-service","Node: in service","Node deleted","Node made again","podgc"};
typedef vector<pair<Lab,S>> Out;
static inline int pc(unsigned x){return __builtin_popcount(x);}
static bool has(const ND&n,int pod,int att,int wd){for(auto&p:n.p)if(p.pod==pod&&p.att==att&&(wd<0||p.wd==wd))return true;return false;}
static bool hasAny(const ND&n,int pod){for(auto&p:n.p)if(p.pod==pod)return true;return false;}
static void sortp(Permit*p){sort(p,p+NPER,[](const Permit&a,const Permit&b){int x=a.pod?a.pod:255,y=b.pod?b.pod:255;return x!=y?x<y:a.att<b.att;});}
static bool addp(ND&n,Permit q){for(auto&p:n.p)if(!p.pod){p=q;sortp(n.p);return true;}return false;}
unsigned charged(const Api&a,bool lit=false){unsigned m=0;
  for(int g=0;g<NG;g++){const Intent&I=a.l.in[g];if(I.kind==ADMIT)for(int r=0;r<SZ[g];r++)m|=1u<<(I.pod[r]-1);
    const Gang&G=a.g[g];if(G.ex&&G.adm)for(int r=0;r<SZ[g];r++)m|=1u<<(G.pod[r]-1);
    if((FIX&F_PLANREC)&&I.kind==EVICT)for(int r=0;r<SZ[g];r++)if(I.pod[r])m|=1u<<(I.pod[r]-1);}
  for(int n=0;n<NODES;n++)if(a.n[n].ex)for(auto&p:a.n[n].p)if(p.pod&&(p.wd||!lit))m|=1u<<(p.pod-1);
  return m;}
// what of it Teams are charged: not what an intent, a Gang or a permit has on a lost node
unsigned teams(const Api&a,bool lit=false){ unsigned m=0; auto by=[&](int pod,int plan){if(!pod||(MUT!=M_LOSTTEAM&&plan&&(a.n[plan-1].ex?a.n[plan-1].lost:MUT!=M_GONETEAM&&!a.o[plan-1].uid)))return; m|=1u<<(pod-1);};
  for(int g=0;g<NG;g++){const Intent&I=a.l.in[g];const Gang&G=a.g[g]; if(I.kind==ADMIT||((FIX&F_PLANREC)&&I.kind==EVICT))for(int r=0;r<SZ[g];r++)by(I.pod[r],I.plan[r]);
    if(G.ex&&G.adm)for(int r=0;r<SZ[g];r++)by(G.pod[r],G.plan[r]);}
  for(int n=0;n<NODES;n++)if(a.n[n].ex&&(!a.n[n].lost||MUT==M_LOSTTEAM))for(auto&p:a.n[n].p)if(p.pod&&(p.wd||!lit))m|=1u<<(p.pod-1);
  return m;}
// with BARE pods have no claim: no driver has a say, and they run as soon as they are bound. Do they have permits, which only charge?
static bool permits(){return !BARE||(FIX&F_BARE);}
// ---- proposals: with PROP an intent names pods, claims and plan by digest only, and its nodes. Equal content is equal digest.
static bool same(const Gang&G,const Intent&I){return G.patt==I.att&&!memcmp(G.pplan,I.plan,RM)&&!memcmp(G.ppod,I.pod,RM)&&!memcmp(G.pcl,I.cl,RM);}
static bool nocmp(){return MUT==M_PNOCMP||MUT==M_PUNSEENCMP;} static bool unseen(){return MUT==M_PUNSEEN||MUT==M_PUNSEENCMP;}
static bool visible(const Api&v,int g){const Intent&I=v.l.in[g];const Gang&G=v.g[g];return G.ex&&((G.adm&&G.att==I.att)||same(G,I)||(nocmp()&&G.patt));}
// the intents as this leader reads them: content that it neither remembers nor sees is lost (kind stays, pods are none)
static u8 readIntents(const Api&v,u8 kn,Intent*J){u8 lost=0;for(int g=0;g<NG;g++){J[g]=v.l.in[g];if(!PROP||!J[g].kind)continue;const Gang&G=v.g[g];
   bool carried=G.ex&&G.adm&&G.att==J[g].att;
   if(nocmp()&&!carried&&G.ex&&G.patt){memcpy(J[g].plan,G.pplan,RM);memcpy(J[g].pod,G.ppod,RM);memcpy(J[g].cl,G.pcl,RM);continue;}
   if((kn>>g&1)&&!nocmp())continue; if(visible(v,g))continue;
   lost|=1<<g; memset(J[g].pod,0,RM);memset(J[g].cl,0,RM); if(MUT==M_PNONODES)memset(J[g].plan,0,RM);} return lost;}
static bool occupied(const Api&a,int n){if(!a.n[n].ex||a.n[n].suid!=a.n[n].uid||a.n[n].held)return true; if(MUT!=M_LOSTPLANNED&&(a.n[n].lost||!a.o[n].rdy))return true;
  if(!a.o[n].uid||a.n[n].nuid!=a.o[n].uid||a.n[n].aw)return true;
 for(auto&p:a.n[n].p)if(p.pod)return true;
  for(int g=0;g<NG;g++){auto&I=a.l.in[g];if(I.kind)for(int r=0;r<SZ[g];r++)if(I.plan[r]==n+1)return true;
    auto&G=a.g[g];if(G.ex&&G.adm)for(int r=0;r<SZ[g];r++)if(G.plan[r]==n+1)return true;}return false;}
static bool livepod(const Pod&p,int g){return p.ex&&p.gang==g&&!p.del&&!p.term;}
static u16 gets(const Ctl&c){return c.st0|c.st1<<8;} static void sets(Ctl&c,u16 v){c.st0=v;c.st1=v>>8;}
static int kindOf(int o){return o==0?KL:o<3?KG:o<5?KN:o<5+MP?KP:KO;}
static void copyObj(Api&d,const Api&s,int o){if(o==0)d.l=s.l;else if(o<3)d.g[o-1]=s.g[o-1];else if(o<5)d.n[o-3]=s.n[o-3];else if(o<5+MP)d.p[o-5]=s.p[o-5];else d.o[o-5-MP]=s.o[o-5-MP];}
// every change of object o in the API: other controllers' lagging copies are now stale; the writer (if any) learns the new state
static void touch(S&s,int o,int by=-1){for(int c=0;c<2;c++)if(s.c[c].frozen&kindOf(o)){ if(c==by){copyObj(s.c[c].snap,s.a,o);sets(s.c[c],gets(s.c[c])&~(1<<o));} else sets(s.c[c],gets(s.c[c])|1<<o);}}
static bool fresh(const S&s,int c,int o){return !((s.c[c].frozen&kindOf(o))&&(gets(s.c[c])>>o&1));}
static void freeze(S&s,int c,int kinds){for(int o=0;o<OB;o++)if((kinds&kindOf(o))&&!(s.c[c].frozen&kindOf(o))){copyObj(s.c[c].snap,s.a,o);sets(s.c[c],gets(s.c[c])&~(1<<o));}s.c[c].frozen|=kinds;}
static void unfreeze(S&s,int c,int kinds){Api z;memset(&z,0,sizeof z);for(int o=0;o<OB;o++)if(kinds&kindOf(o)){copyObj(s.c[c].snap,z,o);sets(s.c[c],gets(s.c[c])&~(1<<o));}s.c[c].frozen&=~kinds;}
static void viewOf(const S&s,int c,Api&v){v=s.a;for(int o=0;o<OB;o++)if(s.c[c].frozen&kindOf(o))copyObj(v,s.c[c].snap,o);}
static void exitc(S&s,int c){memset(&s.c[c],0,sizeof(Ctl));}
static void touchP(S&s,int p){touch(s,5+p);}
static void podGone(S&s,int p){memset(&s.a.p[p],0,sizeof(Pod)-0);s.a.p[p].gang=255;touchP(s,p);}
static void delpod(S&s,int p){if(!s.a.p[p].node)podGone(s,p);else{s.a.p[p].del=1;touchP(s,p);}}
static u8 gangOf(const S&s,int p){return s.k[p].fl>>4;}
static bool stale(const S&s,int c){return s.c[c].ep<s.a.l.ep;}
static void setv(S&s,int v){if(!s.viol)s.viol=v;}
static bool acked(const ND&D){return (D.suid==D.uid||MUT==M_NOUID)&&D.sgen>=D.gen;}
// S1, S2: what a node that is lost, or gone and not back yet, does counts for nobody's Team. When it is back, what it holds may exceed the limit, and only falls.
void check(S&s){ if(s.viol)return;
  unsigned ch=charged(s.a),tm=teams(s.a);
  for(int n=0;n<NODES;n++)if(s.gone[n]){const ND&D=s.a.n[n];bool ok=D.ex&&s.a.o[n].uid&&D.nuid==s.a.o[n].uid&&!D.aw&&D.suid==D.uid;for(int p=0;ok&&p<MP;p++)if((D.held>>p&1)&&!hasAny(D,p+1))ok=false; if(ok){s.gone[n]=0;s.up=1;}}
  unsigned phys=0,pr=0; for(int n=0;n<NODES;n++){unsigned m=s.d[n].rec,run=0;for(int p=0;p<MP;p++)if(s.k[p].kst==3&&s.k[p].nv&&(s.k[p].fl&3)==n+1&&(!BARE||s.a.p[p].ex))run|=1u<<p; m|=run; if(pc(m)>1)setv(s,V_S3);
    if(s.gone[n]||s.down[n]==2)continue; if(s.d[n].rec&~ch)setv(s,V_S2R); pr|=run; if(!s.a.n[n].lost)phys|=BARE?run:m;}
  if(pr&~ch)s.viol=V_S2; int c=pc(tm),f=pc(phys); if(f>LIMIT&&f>max<int>(s.alp,c)&&!s.up)s.viol=V_S1P; if(c>LIMIT&&c>s.al&&!s.up&&!s.viol)s.viol=V_S1C;
  s.al=max(LIMIT,c);s.alp=max(LIMIT,f);s.up=0; }
static void emit(Out&o,Lab l,S&&t){check(t);o.push_back({l,move(t)});}
#define E(kk,aa,bb,cc) emit(out,Lab{(u8)(kk),(u8)(aa),(u8)(bb),(u8)(cc)},move(t))

static bool podsMatch(const Api&v,const u8*pod,const u8*cl,int att,int g,const u8*plan){for(int r=0;r<SZ[g];r++){if(!pod[r])return false;const Pod&p=v.p[pod[r]-1];
   if(!p.ex||p.gang!=g||p.del||p.swap!=cl[r])return false; if(!p.gated&&p.stamp!=att)return false; if(p.node&&p.node!=plan[r])return false; if(p.gated&&p.stamp>att)return false;}return true;}

void ctl(const S&s,int c,Out&out){
  const Ctl&C=s.c[c]; int o=1-c;
  if(C.role==0){ bool other=s.c[o].role==1&&!stale(s,o);
    if(other&&s.bud[B_TAKE]==0) return;
    if(s.c[o].role==1&&stale(s,o)&&false) return;
    static const int masks[]={KL,KL|KP,KL|KG,KL|KN,KL|KG|KN|KP|KO}; int nm=other?5:1;
    for(int m=-1;m<nm;m++){ if(!other&&m>=0)break; if(m<0&&other&&false)continue;
      S t=s; if(other)t.bud[B_TAKE]--;
      if(m<0){ if(other)exitc(t,o);} else freeze(t,o,masks[m]);
      if(MUT!=M_ADMNOCAS)t.a.l.ep++; exitc(t,c); t.c[c].role=1; t.c[c].ep=t.a.l.ep; if(PROP)for(int g=0;g<NG;g++)if(t.a.l.in[g].kind&&visible(t.a,g))t.c[c].kn|=1<<g;
      if(MUT!=M_ADMNOCAS)touch(t,0,c);
      
      E(A_TAKE,c,m+1,0); }
    return; }
  bool st=stale(s,c);
  { bool cf=st; if(cf){S t=s;exitc(t,c);E(A_EXIT,c,0,0);} }
  if(!st&&s.bud[B_CRASH]){S t=s;t.bud[B_CRASH]--;exitc(t,c);E(A_CRASH,c,0,0);}
  if(s.bud[B_FREEZE])for(int k:{KG,KN,KP,KO})if(!(C.frozen&k)){S t=s;t.bud[B_FREEZE]--;freeze(t,c,k);E(A_FREEZE,c,k,0);}
  if(C.frozen&~KL)for(int k:{KG,KN,KP,KO})if(C.frozen&k){S t=s;unfreeze(t,c,k);E(A_UNFREEZE,c,k,0);}
  Api V;viewOf(s,c,V);
  // a write's precondition is the version that was seen; NodeDevices are created wherever there are none, however late
  if((FIX&F_FENCE)&&st){bool see=false;for(auto&g:V.g)if(g.ep>C.ep)see=true;for(auto&n:V.n)if(n.ep>C.ep)see=true;if(see)return;} // an epoch above its own, seen anywhere: it exits (A_EXIT)
  auto wr=[&](int ob,int k,int a,int b,function<void(S&)>f){ if(k!=A_MKND&&!fresh(s,c,ob)){ if(!st){S t=s;unfreeze(t,c,kindOf(ob));E(A_UNFREEZE,c,kindOf(ob),1);} return;} // conflict: stale leader exits (A_EXIT), else re-reads
     if(FIX&F_FENCE){ if(ob>=1&&ob<3&&V.g[ob-1].ep>C.ep)return; if(ob>=3&&ob<5&&V.n[ob-3].ep>C.ep)return; }
     S t=s;f(t); if(FIX&F_FENCE){ if(ob>=1&&ob<3&&t.a.g[ob-1].ex)t.a.g[ob-1].ep=C.ep; if(ob>=3&&ob<5&&t.a.n[ob-3].ex)t.a.n[ob-3].ep=C.ep; }
     touch(t,ob,c);E(k,c,a,b);};
  auto led=[&](int k,int a,int b,function<void(S&)>f){ if(st&&MUT!=M_ADMNOCAS)return; wr(0,k,a,b,[&](S&t){f(t);for(int n=0;n<NODES;n++)t.c[c].led[n]=(FIX&F_LED)&&V.n[n].ex?V.n[n].uid:0;});};
  // permits are added only to NodeDevices that this leader saw before it was the newest for certain: before it read the Ledger, or committed
  bool ask=false; auto has_led=[&](int n){ if(!(FIX&F_LED)||C.led[n]==V.n[n].uid||MUT==M_UNPROVED)return true; ask=true; return false; };
  Intent J[NG]; u8 lost=readIntents(V,C.kn,J); Api D=V; for(int g=0;g<NG;g++)D.l.in[g]=(lost>>g&1)?Intent():J[g];   // D: what decisions go by
  // an attempt is taken back on a node when this leader's epoch is on its NodeDevices and no live permit of it; where there are none, they are made first, unless the Node is gone
  auto owes=[&](int n,int g,int att){ if(C.vt[g]>>n&1)return false; if(!V.n[n].ex)return V.o[n].uid!=0; if(!(FIX&F_FENCE)||V.n[n].ep<C.ep)return true;
     for(auto&q:V.n[n].p)if(q.pod&&q.gang==g&&q.att<=att&&!q.wd)return true; return false;};
  bool pause=lost&&MUT!=M_PIGNORED;
  for(int g=0;g<NG;g++){ const Intent&I=J[g]; const Gang&G=V.g[g]; bool isLost=lost>>g&1;
    int lv[MP],nl=0;for(int p=0;p<MP;p++)if(livepod(V.p[p],g))lv[nl++]=p;
    if(!G.ex&&nl&&!I.kind){int mx=0;for(int i=0;i<nl;i++)mx=max<int>(mx,V.p[lv[i]].stamp);for(int p=0;p<MP;p++)if(V.p[p].ex&&V.p[p].gang==g)mx=max<int>(mx,V.p[p].stamp);
       for(int n=0;n<NODES;n++)if(V.n[n].ex)for(auto&q:V.n[n].p)if(q.pod&&q.gang==g)mx=max<int>(mx,q.att);
       if(!s.a.g[g].ex)wr(1+g,A_MKGANG,g,0,[&](S&t){Gang z;memset(&z,0,sizeof z);z.ex=1;z.att=mx+1;t.a.g[g]=z;}); }
    if((FIX&F_RAISE)&&G.ex&&!G.adm&&!G.fin&&!I.kind){int mx=0;for(int i=0;i<nl;i++)mx=max<int>(mx,V.p[lv[i]].stamp+(V.p[lv[i]].gated||!V.p[lv[i]].stamp?0:1));if(mx>G.att)wr(1+g,A_MKGANG,g,1,[&](S&t){t.a.g[g].att=mx;});}
    // ---- decisions (Ledger)
    if(PROP&&MUT==M_PCARRY&&G.ex&&!G.adm&&!G.fin&&!I.kind&&G.patt==G.att)wr(1+g,A_GADM,g,9,[&](S&t){Gang&H=t.a.g[g];H.adm=1;memcpy(H.plan,G.pplan,RM);memcpy(H.pod,G.ppod,RM);memcpy(H.cl,G.pcl,RM);t.stored[g]|=1u<<(H.att&31);});
    if(G.ex&&!G.adm&&!G.fin&&!I.kind&&nl>=SZ[g]&&!pause){ bool ok=true;u8 pods[RM]={0};for(int r=0;r<SZ[g];r++){const Pod&p=V.p[lv[r]];if(!p.gated||p.node||p.stamp>G.att)ok=false;pods[r]=lv[r]+1;}
       unsigned ch=teams(D,MUT==M_LITCHARGE),nw=0; if(MUT==M_LOSTEARLY)for(int n=0;n<NODES;n++)if(!D.o[n].rdy)for(auto&q:D.n[n].p)if(q.pod)ch&=~(1u<<(q.pod-1));for(int r=0;r<SZ[g];r++)nw|=1u<<lv[r]; if(pc(ch|nw)>LIMIT)ok=false;
       for(int q=0;q<MP;q++) if(V.p[q].ex&&V.p[q].gang==g&&!V.p[q].gated&&!V.p[q].term&&V.p[q].del==0&&ok){bool in=false;for(int r=0;r<SZ[g];r++)in|=pods[r]==q+1;if(!in&&V.p[q].stamp)ok=false;}
       if(ok){ vector<array<u8,RM>>pl; if(SZ[g]==1){for(int n=0;n<NODES;n++)if(!occupied(D,n))pl.push_back({(u8)(n+1),0});} else if(!occupied(D,0)&&!occupied(D,1))pl.push_back({1,2});
         for(auto&x:pl){ Intent N;memset(&N,0,sizeof N);N.kind=ADMIT;N.att=G.att;N.ep=C.ep;for(int r=0;r<RM;r++){N.plan[r]=x[r];N.pod[r]=pods[r];N.cl[r]=pods[r]?V.p[pods[r]-1].swap:0;}
           if(PROP&&!same(G,N))wr(1+g,A_PROPOSE,g,x[0],[&](S&t){Gang&H=t.a.g[g];H.patt=N.att;memcpy(H.pplan,N.plan,RM);memcpy(H.ppod,N.pod,RM);memcpy(H.pcl,N.cl,RM);});
           if(!PROP||same(G,N)||unseen())led(A_ADMIT,g,x[0],[&](S&t){for(int r=0;r<SZ[g];r++)if(V.n[x[r]-1].lost)setv(t,V_LOSTPLAN);t.a.l.in[g]=N;t.c[c].kn|=1<<g;}); } } }
    bool carried=G.ex&&G.adm&&G.att==I.att;
    bool matchG=G.ex&&G.adm&&podsMatch(V,G.pod,G.cl,G.att,g,G.plan);
    bool allterm=G.ex&&G.adm; if(allterm)for(int r=0;r<SZ[g];r++){const Pod&p=V.p[G.pod[r]-1];if(!(p.ex&&p.gang==g&&p.term))allterm=false;}
    
    if(!NOEVICT&&G.ex&&G.adm&&(I.kind==NONE||(I.kind==ADMIT&&carried))&&!allterm){ bool dead=false;if(MUT!=M_LOSTNOEVICT)for(int r=0;r<SZ[g];r++){int n=G.plan[r]-1;if(V.n[n].lost||(V.o[n].oos&&!V.o[n].rdy)||V.o[n].uid!=V.n[n].nuid)dead=true;} bool must=!matchG||dead; if(must||s.bud[B_EV]){
       auto f=[&](S&t){ if(!must)t.bud[B_EV]--; Intent&J=t.a.l.in[g];J.kind=EVICT;J.att=G.att;J.ep=t.c[c].ep;for(int r=0;r<RM;r++){J.plan[r]=G.plan[r];J.pod[r]=G.pod[r];J.cl[r]=G.cl[r];} t.c[c].vt[g]=0;t.c[c].kn|=1<<g;};
       if(MUT==M_EVNOINT)wr(1+g,A_EGANG,g,9,[&](S&t){if(!must)t.bud[B_EV]--;t.a.g[g].adm=0;t.a.g[g].att=G.att+1;memset(t.a.g[g].plan,0,3*RM);});
       else led(A_EVICT,g,must,f);} }
    // ---- Admit intent
    if(I.kind==ADMIT){ bool match=!isLost&&podsMatch(V,I.pod,I.cl,I.att,g,I.plan); bool vd=false,abandon=false;
      bool mine=I.ep==C.ep;
      if(!carried){ bool gated=!isLost;for(int r=0;r<SZ[g]&&gated;r++)if(!V.p[I.pod[r]-1].gated)gated=false;
        if(!isLost&&mine&&G.ex&&G.att==I.att&&!G.fin&&match&&(gated||MUT==M_UNGEARLY))wr(1+g,A_GADM,g,0,[&](S&t){Gang&H=t.a.g[g];H.adm=1;for(int r=0;r<RM;r++){H.plan[r]=I.plan[r];H.pod[r]=I.pod[r];H.cl[r]=I.cl[r];}H.patt=0;memset(H.pplan,0,3*RM);t.stored[g]|=1u<<(H.att&31);});
        else vd=true; }
      else if(NOEVICT&&!match&&!allterm){ bool any=false;for(int r=0;r<SZ[g];r++){const Pod&p=V.p[I.pod[r]-1];if(p.ex&&!p.gated)any=true;} if(any)abandon=true; else vd=true; }
      else if(!mine&&!match&&!allterm)vd=true;
      else if(!abandon&&!vd){ bool okd=true; if(FIX&F_STAYS){for(int r=0;r<SZ[g];r++)if(V.p[I.pod[r]-1].gated||!V.p[I.pod[r]-1].ex)okd=false; for(int r=0;r<SZ[g];r++)if(permits()&&!has(V.n[I.plan[r]-1],I.pod[r],I.att,-1))okd=false; if(allterm)okd=true;}
        if(okd)led(A_DROP,g,0,[&](S&t){memset(&t.a.l.in[g],0,sizeof(Intent));t.c[c].kn&=~(1<<g);}); }
      if(abandon){ bool pend=false;   // started in part, never to be completed: what is gated is stamped, what ended unpermitted is fenced; it stays charged by its Gang
        for(int r=0;r<SZ[g];r++){int p=I.pod[r]-1,n=I.plan[r]-1;const Pod&P=V.p[p]; bool per=has(V.n[n],p+1,I.att,-1);
          if(P.ex&&P.gang==g&&P.gated&&!P.del){ if(P.stamp<=I.att&&MUT!=M_ABNOSTAMP){pend=true;wr(5+p,A_ABSTAMP,p,0,[&](S&t){t.a.p[p].stamp=I.att+1;});} }
          else if(P.ex&&!P.term){ if(!per&&!P.gated)pend=true; }
          else if(!per&&MUT!=M_ABNOFENCE&&owes(n,g,0)){pend=true;if(V.n[n].ex)wr(3+n,A_ABTOUCH,n,0,[&](S&t){if(!(FIX&F_FENCE))t.c[c].vt[g]|=1<<n;t.a.n[n].gen++;});} }
        if(!pend)led(A_DROP,g,3,[&](S&t){memset(&t.a.l.in[g],0,sizeof(Intent));t.c[c].vt[g]=0;t.c[c].kn&=~(1<<g);}); }
      if(MUT==M_UNGEARLY&&mine&&!carried&&match)for(int r=0;r<SZ[g];r++){int p=I.pod[r]-1;if(V.p[p].gated&&has(V.n[I.plan[r]-1],p+1,I.att,0)){wr(5+p,A_UNGATE,p,0,[&](S&t){Pod&P=t.a.p[p];P.gated=0;P.stamp=I.att;P.pin=I.plan[r];if(!(t.stored[g]>>(I.att&31)&1))setv(t,V_S4);});}}
      if((MUT==M_UNGEARLY||MUT==M_PERMBEFORE)&&mine&&!carried&&match)for(int r=0;r<SZ[g];r++){int n=I.plan[r]-1,p=I.pod[r]-1;if(V.n[n].ex&&!has(V.n[n],p+1,I.att,-1))wr(3+n,A_PERMIT,n,p,[&](S&t){if(addp(t.a.n[n],Permit{(u8)(p+1),I.cl[r],(u8)g,I.att,0}))t.a.n[n].gen++;});}
      if(vd){ bool pend=false;
        if(MUT!=M_NOSTAMP&&isLost)for(int p=0;p<MP;p++)if(livepod(V.p[p],g)&&V.p[p].gated&&V.p[p].stamp<I.att+1){pend=true;wr(5+p,A_VSTAMP,p,0,[&](S&t){t.a.p[p].stamp=I.att+1;});}
        if(MUT!=M_NOSTAMP&&!isLost)for(int r=0;r<SZ[g];r++){int p=I.pod[r]-1;if(V.p[p].ex&&V.p[p].gang==g&&V.p[p].gated&&!V.p[p].del&&V.p[p].stamp<I.att+1){pend=true;wr(5+p,A_VSTAMP,p,0,[&](S&t){t.a.p[p].stamp=I.att+1;});}}
        if(!pend&&MUT!=M_VOIDNOGANG&&G.ex&&G.att==I.att){pend=true;wr(1+g,A_VGANG,g,0,[&](S&t){Gang&H=t.a.g[g];H.att=I.att+1;H.adm=0;memset(H.plan,0,3*RM);if(PROP&&!isLost){H.patt=I.att;memcpy(H.pplan,I.plan,RM);memcpy(H.ppod,I.pod,RM);memcpy(H.pcl,I.cl,RM);}});}
        if(!pend&&MUT!=M_VOIDNOND)for(int r=0;r<SZ[g];r++){int n=I.plan[r]-1;if(n<0)continue;if(owes(n,g,I.att)){pend=true;if(V.n[n].ex)wr(3+n,A_VND,n,0,[&](S&t){if(!(FIX&F_FENCE))t.c[c].vt[g]|=1<<n;for(auto&q:t.a.n[n].p)if(q.pod&&q.gang==g&&q.att<=I.att&&!q.wd){q.wd=1;}t.a.n[n].gen++;});}}
        if(!pend)led(A_DROP,g,1,[&](S&t){memset(&t.a.l.in[g],0,sizeof(Intent));t.c[c].vt[g]=0;t.c[c].kn&=~(1<<g);}); } }
    if(NOEVICT&&G.ex&&G.adm&&!I.kind&&!allterm){ bool left=true;for(int r=0;r<SZ[g];r++){int p=G.pod[r]-1,n=G.plan[r]-1;const Pod&P=V.p[p]; if(!P.ex||P.term)continue; if(P.gated&&P.stamp>G.att&&has(V.n[n],p+1,G.att,0))continue; left=false;}
      if(left)wr(1+g,A_LEFT,g,0,[&](S&t){Gang&H=t.a.g[g];H.att=G.att+1;H.adm=0;memset(H.plan,0,3*RM);}); }
    // ---- Evict intent
    if(I.kind==EVICT){ bool pend=false;
      if(MUT!=M_NOSTAMP)for(int p=0;p<MP;p++)if(livepod(V.p[p],g)&&V.p[p].gated&&V.p[p].stamp<I.att+1){pend=true;wr(5+p,A_ESTAMP,p,0,[&](S&t){t.a.p[p].stamp=I.att+1;});}
      if(MUT==M_STAMPUNG)for(int p=0;p<MP;p++)if(livepod(V.p[p],g)&&!V.p[p].gated&&V.p[p].stamp<I.att+1){pend=true;wr(5+p,A_ESTAMP,p,1,[&](S&t){t.a.p[p].stamp=I.att+1;});}
      if(!pend&&G.ex&&G.att==I.att){pend=true;wr(1+g,A_EGANG,g,0,[&](S&t){Gang&H=t.a.g[g];H.att=I.att+1;H.adm=0;memset(H.plan,0,3*RM);if(PROP&&!isLost&&MUT!=M_EVFORGETS){H.patt=I.att;memcpy(H.pplan,I.plan,RM);memcpy(H.ppod,I.pod,RM);memcpy(H.pcl,I.cl,RM);}});}
      if(!pend&&(FIX&F_TOUCH))for(int r=0;r<SZ[g];r++){int n=I.plan[r]-1;if(n<0)continue;if(owes(n,g,I.att)){pend=true;if(V.n[n].ex)wr(3+n,A_ETOUCH,n,0,[&](S&t){if(!(FIX&F_FENCE))t.c[c].vt[g]|=1<<n;for(auto&q:t.a.n[n].p)if(q.pod&&q.gang==g&&q.att<=I.att&&!q.wd){q.wd=1;}t.a.n[n].gen++;});}}
      if(!pend&&(FIX&F_STAYS)){for(int n=0;n<NODES;n++)if(V.n[n].ex)for(auto&q:V.n[n].p)if(q.pod&&q.gang==g&&q.att<=I.att&&!q.wd)pend=true;}
      if(!pend)led(A_DROP,g,2,[&](S&t){memset(&t.a.l.in[g],0,sizeof(Intent));t.c[c].vt[g]=0;t.c[c].kn&=~(1<<g);}); }
    // ---- outwards
    if(G.ex&&G.adm&&I.kind!=EVICT&&!(I.kind==ADMIT&&I.ep!=C.ep&&!matchG)&&matchG&&((FIX&F_STAYS)?true:true)){
      bool allp=true; for(int r=0;r<SZ[g];r++){int n=G.plan[r]-1,p=G.pod[r]-1; if(!V.n[n].ex){allp=false;continue;}
        if(V.p[p].term||!permits())continue; if(!has(V.n[n],p+1,G.att,-1)){allp=false;if(has_led(n))wr(3+n,A_PERMIT,n,p,[&](S&t){if(addp(t.a.n[n],Permit{(u8)(p+1),G.cl[r],(u8)g,G.att,0}))t.a.n[n].gen++;});}
        else if(!has(V.n[n],p+1,G.att,0))allp=false; }
      if(allp)for(int r=0;r<SZ[g];r++){int p=G.pod[r]-1; if(V.p[p].gated)wr(5+p,A_UNGATE,p,0,[&](S&t){Pod&P=t.a.p[p];P.gated=0;P.stamp=G.att;P.pin=G.plan[r];
          const Gang&H=t.a.g[g]; if(!(t.stored[g]>>(G.att&31)&1))setv(t,V_S4); if(CHK_S16&&H.ex&&H.att>G.att&&(st||!(FIX&F_FENCE)||H.ep>=t.c[c].ep))setv(t,V_S16U); if(H.ex&&H.adm&&H.att==G.att&&(H.plan[r]!=G.plan[r]||H.pod[r]!=G.pod[r]))setv(t,V_S4M);}); } }
    if(allterm&&I.kind!=EVICT)wr(1+g,A_FINGANG,g,0,[&](S&t){t.a.g[g].fin=1;t.a.g[g].patt=0;memset(t.a.g[g].pplan,0,3*RM);t.a.g[g].adm=0;memset(t.a.g[g].plan,0,3*RM);});
    if(!NOEVICT&&G.ex&&G.att>1)for(int p=0;p<MP;p++)if(livepod(V.p[p],g)&&!V.p[p].gated&&V.p[p].stamp<G.att&&s.a.p[p].ex&&!s.a.p[p].del){S t=s;const Gang&H=t.a.g[g];
       if(CHK_S16&&st&&H.ex&&H.adm&&H.att==t.a.p[p].stamp)setv(t,V_S16D); delpod(t,p);E(A_DELPOD,c,p,0);}
  }
  for(int n=0;n<NODES;n++){ const ND&D=V.n[n]; const Node&O=V.o[n]; u8 ouid=O.uid;
    if(D.ex){ bool any=false;for(auto&q:D.p)if(q.pod)any=true; bool named=false;for(int g=0;g<NG;g++)for(int r=0;r<RM;r++)if(V.l.in[g].plan[r]==n+1||(V.g[g].ex&&V.g[g].adm&&V.g[g].plan[r]==n+1))named=true;
      if(!any&&!named&&O.uid!=D.nuid&&MUT!=M_NDSTAYS)wr(3+n,A_NDEND,n,0,[&](S&t){if(t.a.o[n].uid)t.up=1;u8 u=t.a.n[n].uid;memset(&t.a.n[n],0,sizeof(ND));t.a.n[n].uid=u;});
      else if(O.uid&&O.uid!=D.nuid)wr(3+n,A_RENODE,n,0,[&](S&t){ND&N=t.a.n[n];N.nuid=ouid;N.aw=MUT!=M_RETUNANSWERED;N.gen++;if(MUT==M_RETNOPERMITS)memset(N.p,0,sizeof N.p);});
      if(!D.lost&&!O.rdy)wr(3+n,A_LOST,n,0,[&](S&t){t.a.n[n].lost=1;t.a.n[n].gen++;});
      if((D.lost||D.aw)&&O.uid==D.nuid&&O.rdy&&(acked(D)||MUT==M_LOSTUNACKED))wr(3+n,A_FOUND,n,0,[&](S&t){ND&N=t.a.n[n];t.up=1;N.lost=N.aw=0;N.gen++;if(acked(D))for(int p=0;p<MP;p++)if((D.held>>p&1)&&!hasAny(D,p+1))addp(N,Permit{(u8)(p+1),0,gangOf(s,p),V.p[p].ex?V.p[p].stamp:(u8)0,1});}); }
    if(!D.ex){ if(!s.a.n[n].ex&&ouid)wr(3+n,A_MKND,n,0,[&](S&t){if(s.gone[n]||!s.a.o[n].uid)t.up=1;ND z;memset(&z,0,sizeof z);z.ex=1;z.uid=s.a.n[n].uid+1;z.gen=1;z.nuid=ouid;
         for(int g=0;g<NG;g++)if(!(FIX&F_LED)&&permits()&&V.g[g].ex&&V.g[g].adm&&V.l.in[g].kind!=EVICT)for(int r=0;r<SZ[g];r++)if(V.g[g].plan[r]==n+1&&V.p[V.g[g].pod[r]-1].ex)addp(z,Permit{V.g[g].pod[r],V.g[g].cl[r],(u8)g,V.g[g].att,0}); t.a.n[n]=z;}); continue; }
    for(int i=0;i<NPER;i++){const Permit&q=D.p[i]; if(!q.pod)continue; const Pod&P=V.p[q.pod-1]; const Gang&G=V.g[q.gang];
      bool gone=!P.ex||P.term; bool dead=G.ex&&(G.att>q.att||G.fin);
      if(!q.wd&&(gone||dead))wr(3+n,A_WITHDRAW,n,q.pod-1,[&](S&t){for(auto&x:t.a.n[n].p)if(x.pod==q.pod&&x.att==q.att)x.wd=1;t.a.n[n].gen++;
          const Gang&H=t.a.g[q.gang]; if(CHK_S16&&st&&H.ex&&H.adm&&H.att==q.att&&t.a.p[q.pod-1].ex&&!t.a.p[q.pod-1].term&&!t.a.p[q.pod-1].del&&t.a.l.in[q.gang].kind!=EVICT)setv(t,V_S16W);});
      bool ack=(D.suid==D.uid||MUT==M_NOUID)&&D.sgen>=D.gen&&!(D.held>>(q.pod-1)&1);
      if(BARE)ack=gone||P.gated||(P.node&&P.node!=n+1); if(MUT==M_RELVANISH&&!P.ex)ack=true; if(MUT==M_RELUNACK)ack=!(D.held>>(q.pod-1)&1);
      { const Node&U=s.a.o[n]; bool nodeGone=U.uid!=D.nuid,podGoneV=!P.ex||P.term||P.node!=n+1;   // read uncached, after the withdrawal was seen
        if(nodeGone&&(podGoneV||MUT==M_PROOFNODE))ack=true; if(!nodeGone&&U.oos&&(!U.rdy||MUT==M_PROOFOLD))ack=true; if(MUT==M_PROOFPOD&&D.lost&&podGoneV)ack=true; }
      if((q.wd||(BARE&&gone))&&ack)wr(3+n,A_RELEASE,n,q.pod-1,[&](S&t){for(auto&x:t.a.n[n].p)if(x.pod==q.pod&&x.att==q.att)memset(&x,0,sizeof x);sortp(t.a.n[n].p);t.a.n[n].gen++;
          const Gang&H=t.a.g[q.gang]; if(CHK_S16&&st&&!q.wd&&H.ex&&H.adm&&H.att==q.att&&t.a.p[q.pod-1].ex&&!t.a.p[q.pod-1].term&&!t.a.p[q.pod-1].del&&t.a.l.in[q.gang].kind!=EVICT)setv(t,V_S16W);}); }
    for(int p=0;p<MP;p++)if((D.held>>p&1)&&D.suid==D.uid&&!hasAny(D,p+1)&&D.sgen>=D.gen)wr(3+n,A_ADOPT,n,p,[&](S&t){if(s.gone[n])t.up=1;if(addp(t.a.n[n],Permit{(u8)(p+1),0,gangOf(s,p),V.p[p].ex?V.p[p].stamp:(u8)0,1}))t.a.n[n].gen++;});
     }
  if(ask&&!st){S t=s;for(int n=0;n<NODES;n++)t.c[c].led[n]=V.n[n].ex?V.n[n].uid:0;E(A_LED,c,0,0);}
}
void drv(const S&s,int n,Out&out){ const Drv&D=s.d[n]; const ND&O=s.a.n[n]; if(s.down[n]==2)return; bool up=!s.down[n];
  for(int i=0;i<2;i++){ const View&v=D.v[i]; if(!v.on)continue;
    u8 cu=O.ex?O.uid:0,cg=O.ex?O.gen:0;
    if(up&&(v.uid!=cu||v.gen!=cg)){S t=s;View&w=t.d[n].v[i];w.uid=cu;w.gen=cg;if(O.ex)memcpy(w.p,O.p,sizeof w.p);else memset(w.p,0,sizeof w.p);E(A_WATCH,n,i,0);}
    if(v.uid&&!v.pend){ u8 h=D.rec;for(auto&p:v.p)if(p.pod&&!p.wd)h&=~(1<<(p.pod-1));
      bool newer=D.auid!=v.uid||v.gen>D.agen; bool same=D.auid==v.uid&&v.gen==D.agen;
      if(D.auid!=v.uid&&D.auid&&MUT!=M_UIDBLIND&&MUT!=M_NOUID&&O.uid!=v.uid)newer=false;   // another UID on disk: which one is newer is asked of the API
      if(D.auid==0&&(FIX&F_ACKMAX)&&(!up||O.uid!=v.uid||v.gen!=O.gen))newer=false; if(!up&&D.auid!=v.uid)newer=false;   // after loss of the checkpoint only an uncached read counts
      bool diff=O.ex&&(O.uid==v.uid||MUT==M_NOUID)&&(O.suid!=v.uid||O.sgen<v.gen||(O.sgen==v.gen&&O.held!=h));
      if(newer||(same&&diff)){S t=s;View&w=t.d[n].v[i];if(MUT!=M_ACKFIRST){t.d[n].auid=v.uid;t.d[n].agen=v.gen;} if(diff){w.pend=1;w.puid=v.uid;w.pgen=v.gen;w.pheld=h;} else if(MUT==M_ACKFIRST){t.d[n].auid=v.uid;t.d[n].agen=v.gen;} E(A_PERSIST,n,i,h);} }
    if(v.pend==1&&up){S t=s;View&w=t.d[n].v[i]; if(O.ex&&(O.uid==v.puid||MUT==M_NOUID)){ND&X=t.a.n[n];if(X.suid!=v.puid||X.sgen!=v.pgen||X.held!=v.pheld){X.suid=v.puid;X.sgen=v.pgen;X.held=v.pheld;touch(t,3+n);}}
      u8 gu=w.puid,gg=w.pgen; w.pend=w.puid=w.pgen=w.pheld=0; if(MUT==M_ACKFIRST){w.pend=2;w.puid=gu;w.pgen=gg;} E(A_STATUS,n,i,v.pheld);}
    if(v.pend==2){S t=s;View&w=t.d[n].v[i];t.d[n].auid=v.puid;t.d[n].agen=v.pgen;w.pend=w.puid=w.pgen=0;E(A_LATEDISK,n,i,0);}
    for(int p=0;p<MP;p++){ if((s.k[p].fl&3)!=n+1)continue; bool want=!BARE&&((s.k[p].kst==1)||s.k[p].infl); if(!want||(D.rec>>p&1))continue;
      unsigned busy=D.rec;for(int q=0;q<MP;q++)if(q!=p&&s.k[q].kst==3&&s.k[q].nv&&(s.k[q].fl&3)==n+1)busy|=1u<<q;
      bool per=false;for(auto&q:v.p)if(q.pod==p+1&&!q.wd&&(q.swap==s.a.p[p].swap||MUT==M_NOCLAIM))per=true; if(MUT==M_NOPERMIT)per=true;
      bool vw=D.auid==v.uid&&v.gen>=D.agen; if(MUT==M_NOVIEW||MUT==M_NOPERMIT)vw=true;
      if(D.auid!=v.uid&&D.auid==0&&v.uid){vw=!(FIX&F_ACKMAX);}
      if(s.k[p].infl&&s.k[p].kst!=1&&(FIX&F_CANCEL))continue;
      bool go=per&&vw; if(MUT==M_PRECHECK){ if(s.k[p].infl==2)go=true; else { if(per&&vw){S t=s;t.k[p].infl=2;E(A_CHECK,n,i,p);} go=false; } }
      if(go&&!busy){S t=s;t.d[n].rec|=1<<p; if(t.k[p].infl)t.k[p].infl=0;
        bool any=false;for(auto&q:O.p)if(q.pod==p+1&&q.swap==s.a.p[p].swap)any=true; if(O.ex&&!any&&O.uid==1&&!s.gone[n])setv(t,V_S3P); E(A_RECORD,n,i,p);} }
    if(up&&s.bud[B_DR]){S t=s;t.bud[B_DR]--;View&w=t.d[n].v[i];memset(&w,0,sizeof w);w.on=1;w.uid=cu;w.gen=cg;if(O.ex)memcpy(w.p,O.p,sizeof w.p);E(A_DRVRESTART,n,i,0);}
    if(D.v[1-i].on){S t=s;memset(&t.d[n].v[i],0,sizeof(View)); if(i==0)swap(t.d[n].v[0],t.d[n].v[1]); E(A_DRVSTOP,n,i,0);}
  }
  if(up&&s.bud[B_DU]&&!D.v[1].on){S t=s;t.bud[B_DU]--;View&w=t.d[n].v[1];w.on=1;w.uid=O.ex?O.uid:0;w.gen=O.ex?O.gen:0;if(O.ex)memcpy(w.p,O.p,sizeof w.p);E(A_DRVUPDATE,n,1,0);}
  if(s.bud[B_DL]&&D.auid){S t=s;t.bud[B_DL]--;t.d[n].auid=t.d[n].agen=0;E(A_DISKLOSS,n,0,0);}
}
void env(const S&s,Out&out){
  for(int p=0;p<MP;p++){ const Pod&P=s.a.p[p]; const Kub&k=s.k[p]; int nn=(k.fl&3)-1; bool cut=nn>=0&&s.down[nn]==1,off=nn>=0&&s.down[nn]==2; bool alive=cut?k.kst&&k.kst<4:P.ex&&!P.del; if(off)goto api;   // a kubelet that is cut off goes by what it knew
    {
    if(BARE&&k.kst==1){ S t=s; t.k[p].kst=alive?3:5; t.k[p].nv=alive?1:0; E(alive?A_KSTART:A_KNOPREP,nn,0,p); }
    else if(k.kst==1){ if(nn>=0&&(s.d[nn].rec>>p&1)&&k.infl==0){S t=s;t.k[p].kst=2;E(A_ANSWER,nn,0,p);}
      if(!alive){S t=s;bool r=s.d[nn].rec>>p&1;t.k[p].kst=r?4:5;t.k[p].infl=0;E(A_KNOPREP,nn,0,p);
        if(s.bud[B_ZOM]&&!r){S t=s;t.bud[B_ZOM]--;t.k[p].kst=5;t.k[p].infl=1;E(A_KNOPREP,nn,1,p);} } }
    if(k.kst==2){ if(alive){S t=s;t.k[p].kst=3;t.k[p].nv=LATE?0:1;E(A_KSTART,nn,0,p);} else {S t=s;t.k[p].kst=4;E(A_KKILL,nn,0,p);} }
    if(k.kst==3){ if(!alive){S t=s;t.k[p].kst=4;t.k[p].nv=0;E(A_KKILL,nn,0,p);}
      if(!P.ex&&(s.d[nn].rec>>p&1)&&(!k.nv||MUT==M_UNPBUSY)&&!(FIX&F_CGROUP)){S t=s;t.d[nn].rec&=~(1<<p);E(A_KEARLY,nn,0,p);}
      if(LATE&&!k.nv){S t=s;t.k[p].nv=1;E(A_NV,nn,1,p);}
      if(LATE&&k.nv&&s.bud[B_LATE]){S t=s;t.bud[B_LATE]--;t.k[p].nv=0;E(A_NV,nn,0,p);}
      bool whole=false;{const Gang&H=s.a.g[P.gang<NG?P.gang:0];if(P.ex&&H.ex&&H.adm&&H.att==P.stamp){whole=true;for(int r=0;r<SZ[P.gang];r++){int q=H.pod[r]-1;if(s.k[q].kst<3||!s.a.p[q].ex||s.a.p[q].del)whole=false;}}}
      if(alive&&whole&&(s.bud[B_FIN]||live_mode)){S t=s;if(!live_mode)t.bud[B_FIN]--;t.k[p].kst=4;t.k[p].nv=0;t.k[p].fl|=4;E(A_FINISH,nn,0,p);} }
    if(k.kst==4){S t=s;t.d[nn].rec&=~(1<<p);t.k[p].kst=5;E(A_KUNPREP,nn,0,p);}
    if(k.kst==5&&P.ex&&P.del&&!cut){S t=s;podGone(t,p);E(A_KDONE,nn,0,p);}
    else if(k.kst==5&&P.ex&&(k.fl&4)&&!P.term&&!cut){S t=s;t.a.p[p].term=1;touchP(t,p);int g=P.gang;bool all=true;for(int r=0;r<SZ[g];r++){bool f=false;for(int q=0;q<MP;q++)if(t.a.p[q].ex&&t.a.p[q].gang==g&&t.a.p[q].rank==r&&t.a.p[q].term)f=true;all&=f;}if(all)t.done[g]=1;E(A_KDONE,nn,1,p);}
    if(nn>=0&&(s.d[nn].rec>>p&1)&&k.kst==5&&(FIX&F_CANCEL)){S t=s;t.d[nn].rec&=~(1<<p);E(A_DGC,nn,0,p);}
    }
    api: alive=P.ex&&!P.del;
    if(alive&&!P.gated&&!P.node&&!P.term)for(int n=0;n<NODES;n++){ if(P.pin&&P.pin!=n+1)continue; if(!s.a.o[n].uid||!s.a.o[n].rdy||s.a.o[n].oos)continue; bool al=false;for(int q=0;q<MP;q++)if(q!=p&&s.a.p[q].ex&&s.a.p[q].node==n+1&&!s.a.p[q].term)al=true; if(al)continue;
       S t=s;t.a.p[p].node=n+1;t.k[p].kst=s.down[n]==1?6:1;t.k[p].fl|=n+1;touchP(t,p);E(A_BIND,n,0,p);}
    if(k.kst==6&&nn>=0&&!s.down[nn]){S t=s;t.k[p].kst=P.ex&&!P.del?1:5;E(A_KNOPREP,nn,2,p);}   // the kubelet sees what was bound while it was cut off
    if(P.ex&&P.node&&(!s.a.o[P.node-1].uid||(s.a.o[P.node-1].oos&&P.del))){S t=s;podGone(t,p);E(A_PODGC,0,0,p);}
    if(P.ex&&s.bud[B_FORCE]&&!P.term){ {S t=s;t.bud[B_FORCE]--;podGone(t,p);E(A_FORCE,0,0,p);} if(!P.del&&P.node){S t=s;t.bud[B_FORCE]--;delpod(t,p);E(A_FORCE,1,0,p);} }
    if(alive&&P.gated&&s.bud[B_BYP]){S t=s;t.bud[B_BYP]--;t.a.p[p].gated=0;touchP(t,p);E(A_BYPASS,0,0,p);}
    if(alive&&!P.node&&!P.swap&&s.bud[B_SWAP]){S t=s;t.bud[B_SWAP]--;t.a.p[p].swap=1;touchP(t,p);E(A_SWAP,0,0,p);}
  }
  for(int g=0;g<NG;g++){ if(!SZ[g])continue;
    if(s.owner[g]&&!s.done[g])for(int r=0;r<SZ[g];r++){bool f=false;for(int p=0;p<MP;p++)if(s.a.p[p].ex&&s.a.p[p].gang==g&&s.a.p[p].rank==r&&!s.a.p[p].del)f=true;
      if(!f)for(int p=0;p<MP;p++)if(!s.a.p[p].ex&&s.a.p[p].gang==254){S t=s;Pod&P=t.a.p[p];memset(&P,0,sizeof P);P.ex=1;P.gang=g;P.rank=r;P.gated=1;t.k[p].fl=g<<4;touchP(t,p);E(A_RECREATE,g,0,p);break;} }
    if(s.a.g[g].ex&&s.bud[B_DELG]){S t=s;t.bud[B_DELG]--;memset(&t.a.g[g],0,sizeof(Gang));touch(t,1+g);E(A_DELG,g,0,0);}
    if(s.a.g[g].ex&&!s.owner[g]){S t=s;memset(&t.a.g[g],0,sizeof(Gang));touch(t,1+g);E(A_GCGANG,g,0,0);}
    if(s.owner[g]&&s.bud[B_OWN]){S t=s;t.bud[B_OWN]--;t.owner[g]=0;for(int p=0;p<MP;p++)if(livepod(t.a.p[p],g))delpod(t,p);E(A_OWNDEL,g,0,0);}
  }
  for(int n=0;n<NODES;n++){ const Node&O=s.a.o[n]; int ob=5+MP+n;
    if(!s.down[n]&&!O.oos&&s.bud[B_CUT]){S t=s;t.bud[B_CUT]--;t.down[n]=1;E(A_CUT,n,0,0);}
    if(s.down[n]<2&&s.bud[B_OFF]){S t=s;t.bud[B_OFF]--;t.down[n]=2;for(int p=0;p<MP;p++)if((s.k[p].fl&3)==n+1&&s.k[p].kst&&s.k[p].kst<5){t.k[p].kst=6;t.k[p].nv=t.k[p].infl=0;}E(A_OFF,n,0,0);}
    if(s.down[n]&&O.uid&&O.rdy){S t=s;t.a.o[n].rdy=0;touch(t,ob);E(A_NRDY,n,0,0);}
    if(s.down[n]&&!(live_mode&&DEAD)){S t=s; if(s.down[n]==2){t.d[n].rec=0;u8 cu=s.a.n[n].ex?s.a.n[n].uid:0;for(auto&v:t.d[n].v){bool on=v.on;memset(&v,0,sizeof v);if(on){v.on=1;v.uid=cu;if(cu){v.gen=s.a.n[n].gen;memcpy(v.p,s.a.n[n].p,sizeof v.p);}}}}
      t.down[n]=0; if(O.uid){t.a.o[n].rdy=1;touch(t,ob);} E(A_BACK,n,0,0);}   // a kubelet tells of itself before it starts anything
    if(s.down[n]==2&&O.uid&&!O.rdy&&!O.oos){S t=s;t.a.o[n].oos=1;touch(t,ob);E(A_OOS,n,0,0);}
    if(!s.down[n]&&O.oos){S t=s;t.a.o[n].oos=0;touch(t,ob);E(A_UNOOS,n,0,0);}
    if(s.down[n]&&O.uid&&s.bud[B_NODEL]){S t=s;t.bud[B_NODEL]--;memset(&t.a.o[n],0,sizeof(Node));t.gone[n]=1;touch(t,ob);E(A_NODEDEL,n,0,0);}
    if(!s.down[n]&&!O.uid){S t=s;t.up=1;t.a.o[n].uid=++t.nseq[n];t.a.o[n].rdy=1;touch(t,ob);E(A_NODENEW,n,0,0);} }
  for(int n=0;n<NODES;n++)if(s.a.n[n].ex&&s.bud[B_DELN]){S t=s;t.bud[B_DELN]--; bool any=false;for(auto&q:s.a.n[n].p)if(q.pod)any=true; if((FIX&F_NDFIN)&&any)continue;
     if(s.a.n[n].lost)t.up=1; u8 u=s.a.n[n].uid;memset(&t.a.n[n],0,sizeof(ND));t.a.n[n].uid=u;touch(t,3+n);E(A_DELN,n,0,0);}   // the mark goes with it: its Teams are charged again, as if the node were back
}
// rank-compress generations of one node (only their order matters)
static void canon(S&s){ for(int n=0;n<NODES;n++){ vector<u8*>r; auto ad=[&](u8&x){if(x)r.push_back(&x);};
    ad(s.a.n[n].gen);ad(s.a.n[n].sgen);ad(s.d[n].agen);for(auto&v:s.d[n].v){ad(v.gen);ad(v.pgen);}
    for(auto&c:s.c)if(c.frozen&KN){ad(c.snap.n[n].gen);ad(c.snap.n[n].sgen);}
    u8 vals[16];int k=0;for(auto x:r){vals[k++]=*x;} sort(vals,vals+k);k=unique(vals,vals+k)-vals; for(auto x:r)*x=lower_bound(vals,vals+k,*x)-vals+1; }
  for(int p=0;p<MP;p++)if(s.k[p].kst==5&&!s.a.p[p].ex&&!s.k[p].infl)s.k[p].nv=0; }
void succ(const S&s,Out&out){ out.clear(); if(s.viol)return; ctl(s,0,out);ctl(s,1,out);for(int n=0;n<NODES;n++)drv(s,n,out);env(s,out); for(auto&x:out)canon(x.second);}
S init(){S s;memset(&s,0,sizeof s);s.a.l.ep=1;s.c[0].role=1;s.c[0].ep=1;int p=0;for(int q=0;q<MP;q++)s.a.p[q].gang=254;
  for(int g=0;g<NG;g++){ if(!SZ[g])continue; s.a.g[g].ex=1;s.a.g[g].att=1;s.owner[g]=1;for(int r=0;r<SZ[g];r++){Pod&P=s.a.p[p];P=Pod();memset(&P,0,sizeof P);P.ex=1;P.gang=g;P.rank=r;P.gated=1;s.k[p].fl=g<<4;p++;}}
  for(int n=0;n<NODES;n++){s.nseq[n]=1;s.a.o[n].uid=1;s.a.o[n].rdy=1; ND&D=s.a.n[n];D.nuid=1;D.ex=1;D.uid=1;D.gen=1;D.suid=1;D.sgen=1;s.d[n].auid=1;s.d[n].agen=1;View&v=s.d[n].v[0];v.on=1;v.uid=1;v.gen=1;} return s;}
static string labs(const Lab&l){char b[160];const char*who="";string x=AN[l.k];
  if(l.k<=A_MKND&&l.k!=A_NONE||l.k==A_ETOUCH||(l.k>=A_PROPOSE&&l.k<=A_NDEND)){snprintf(b,sizeof b,"L%d %s",l.a+1,x.c_str());x=b;
    switch(l.k){case A_TAKE:{static const char*m[]={" (old leader dead)"," (old lives, caches follow)"," (old lives, Pods lag)"," (old lives, Gangs lag)"," (old lives, ND lag)"," (old lives, all frozen)"};x+=m[l.b];break;}
      case A_FREEZE:case A_UNFREEZE:x+=l.b==KG?" Gangs":l.b==KN?" ND":" Pods";break;
      case A_PERMIT:case A_WITHDRAW:case A_RELEASE:case A_ADOPT:snprintf(b,sizeof b," n%d p%d",l.b+1,l.c);x+=b;break;
      case A_ADMIT:case A_PROPOSE:snprintf(b,sizeof b," %c on n%d",'A'+l.b,l.c);x+=b;break;
      case A_UNGATE:case A_DELPOD:case A_VSTAMP:case A_ESTAMP:case A_ABSTAMP:snprintf(b,sizeof b," p%d",l.b);x+=b;break;
      case A_VND:case A_MKND:case A_ETOUCH:case A_ABTOUCH:case A_LOST:case A_FOUND:case A_RENODE:case A_NDEND:snprintf(b,sizeof b," n%d",l.b+1);x+=b;break;
      case A_EXIT:case A_CRASH:case A_LED:break; default:snprintf(b,sizeof b," %c",'A'+l.b);x+=b;} }
  else if(l.k>=A_CUT&&l.k<=A_NODENEW){snprintf(b,sizeof b,"n%d %s",l.a+1,x.c_str());x=b;}
  else if(l.k>=A_WATCH&&l.k<=A_CHECK){snprintf(b,sizeof b,"n%d/i%d %s%s",l.a+1,l.b,x.c_str(),(l.k==A_RECORD||l.k==A_CHECK)?(string(" p")+char('0'+l.c)).c_str():(l.k==A_PERSIST||l.k==A_STATUS)?(string(" held=")+to_string(l.c)).c_str():"");x=b;}
  else if(l.k==A_DRVRESTART||l.k==A_DRVUPDATE||l.k==A_DRVSTOP||l.k==A_DISKLOSS||l.k==A_DELN){snprintf(b,sizeof b,"n%d/i%d %s",l.a+1,l.b,x.c_str());x=b;}
  else if(l.k==A_OWNDEL||l.k==A_DELG||l.k==A_GCGANG){x+=string(" ")+char('A'+l.a);}
  else if(l.k==A_RECREATE){snprintf(b,sizeof b,"%s p%d of %c",x.c_str(),l.c,'A'+l.a);x=b;}
  else if(l.k==A_BIND||(l.k>=A_ANSWER&&l.k<=A_FINISH)||l.k==A_DGC){snprintf(b,sizeof b,"n%d %s p%d",l.a+1,x.c_str(),l.c);x=b; if(l.k==A_KNOPREP&&l.b)x+=" (call still in driver)";}
  else {snprintf(b,sizeof b,"%s p%d%s",x.c_str(),l.c,l.k==A_FORCE&&l.a?" (graceful)":"");x=b;}
  (void)who;return x;}
static bool isFault(int k){switch(k){case A_CRASH:case A_FREEZE:case A_DRVRESTART:case A_DRVUPDATE:case A_DISKLOSS:case A_FORCE:case A_DELG:case A_DELN:case A_OWNDEL:case A_BYPASS:case A_SWAP:case A_CUT:case A_OFF:case A_NODEDEL:return true;}return false;}
// ---- liveness: fair fault-free schedule to quiescence
static u8 S0BYP=0;
static u64 rng=88172645463325252ull; static u64 rnd(){rng^=rng<<13;rng^=rng>>7;rng^=rng<<17;return rng;}
string livecheck(S s,vector<string>*tr=nullptr){ bool byp=false; byp=byp||S0BYP!=s.bud[B_BYP]; for(int p=0;p<MP;p++)if(s.a.p[p].ex&&!s.a.p[p].gated&&!s.a.p[p].stamp)byp=true;
  memset(s.bud,0,sizeof s.bud); live_mode=true; Out o; string res; int idle=0,sl=0;
  for(int step=0;step<3000;step++){ succ(s,o); if(s.viol){res=string("violation ")+VN[s.viol];break;}
    vector<int>ok;for(size_t i=0;i<o.size();i++){int k=o[i].first.k; if(isFault(k))continue; if(k==A_TAKE&&o[i].first.b!=0)continue; if(memcmp(&o[i].second,&s,sizeof s)==0)continue; ok.push_back(i);}
    if(ok.empty()){ // start limit as a last resort
      bool did=false; if(sl<4)for(int g=0;g<NG;g++)if(s.a.g[g].ex&&s.a.g[g].adm&&!s.a.l.in[g].kind&&!did){ bool bound=false;for(int r=0;r<SZ[g];r++){const Pod&p=s.a.p[s.a.g[g].pod[r]-1];if(p.ex&&p.node&&s.down[p.node-1])bound=true;} if(bound)continue;S t=s;t.bud[B_EV]=1;succ(t,o);for(auto&x:o)if(x.first.k==A_EVICT&&x.first.b==g){s=x.second;s.bud[B_EV]=0;did=true;sl++;if(tr)tr->push_back("start limit: "+labs(x.first));break;}}
      if(did)continue; idle=1;break;}
    int ch=ok[rnd()%ok.size()]; if(tr)tr->push_back(labs(o[ch].first)); s=o[ch].second; }
  live_mode=false; if(!res.empty())return res; if(!idle)return "livelock (3000 steps)";
  if(byp)return ""; bool exhausted=true;for(int p=0;p<MP;p++)if(s.a.p[p].gang==254)exhausted=false;
  for(int g=0;g<NG;g++)if(s.a.l.in[g].kind)return "intent left";
  for(int n=0;n<NODES;n++){ if(!s.a.o[n].uid&&s.a.n[n].ex)return "NodeDevices left of a node that is gone"; if(s.down[n]||!s.a.o[n].uid)continue; if(s.a.n[n].lost)return "lost left"; if(s.d[n].rec)return "prepared record left"; if(s.a.n[n].held)return "held left"; for(auto&q:s.a.n[n].p)if(q.pod)return "permit left"; if(!s.a.n[n].ex)return "NodeDevices missing";}
  for(int g=0;g<NG;g++)if(SZ[g]&&s.owner[g]&&!s.done[g]&&!exhausted)return "gang waits for ever";
  for(int p=0;p<MP;p++)if(s.a.p[p].ex&&s.a.p[p].gated&&!s.a.g[s.a.p[p].gang].ex)return "gated pod without Gang";
  return ""; }
// ---- packing
static void pack(const S&s,string&o){const u8*b=(const u8*)&s;o.clear();size_t n=sizeof(S);for(size_t i=0;i<n;i+=8){u8 m=0;size_t at=o.size();o.push_back(0);for(int j=0;j<8&&i+j<n;j++)if(b[i+j]){m|=1<<j;o.push_back(b[i+j]);}o[at]=m;}}
static void unpack(const char*p,S&s){u8*b=(u8*)&s;size_t n=sizeof(S);for(size_t i=0;i<n;i+=8){u8 m=*p++;for(int j=0;j<8&&i+j<n;j++)b[i+j]=(m>>j&1)?*p++:0;}}
static u64 hs(const S&s){const u64*w=(const u64*)&s;u64 h=0x9E3779B97F4A7C15ull;size_t n=sizeof(S)/8;for(size_t i=0;i<n;i++){h^=w[i];h*=0xff51afd7ed558ccdull;h^=h>>32;}u64 t=0;memcpy(&t,(const u8*)&s+n*8,sizeof(S)-n*8);h^=t;h*=0xc4ceb9fe1a85ec53ull;h^=h>>33;return h?h:1;}
struct Set{vector<u64>t;u64 mask,n=0;Set(int b){t.assign(1ull<<b,0);mask=(1ull<<b)-1;}bool add(u64 h){if(n*10>mask*7){vector<u64>o;o.swap(t);t.assign((mask+1)*2,0);mask=mask*2+1;for(u64 x:o)if(x){u64 i=(x*0x9E3779B97F4A7C15ull>>7)&mask;while(t[i])i=(i+1)&mask;t[i]=x;}}
  u64 i=(h*0x9E3779B97F4A7C15ull>>7)&mask;while(t[i]){if(t[i]==h)return false;i=(i+1)&mask;}t[i]=h;n++;return true;}};
struct Rec{uint32_t par;u16 act;};
int main(int ac,char**av){ S s0; string mode="bfs"; u8 bud[NB]={0}; u64 maxs=20000000; int lives=0; u64 walks=0,depth=400; u64 seed=1; int stopv=1; set<int>ign; double tl=1e9; bool showlive=false;
  for(int i=1;i<ac;i++){string a=av[i];auto e=a.find('=');string k=a.substr(0,e),v=e==string::npos?"":a.substr(e+1);bool f=false;
    for(int b=0;b<NB;b++)if(k==BN[b]){bud[b]=stoi(v);f=true;} if(f){if(k=="late")LATE=true;continue;}
    if(k=="mut"){bool ok=false;for(int m=0;m<NM;m++)if(v==MN[m]){MUT=m;ok=true;}if(!ok){fprintf(stderr,"unknown mut\n");return 2;}} else if(k=="fix")FIX=stoi(v); else if(k=="limit")LIMIT=stoi(v); else if(k=="nodes")NODES=stoi(v); else if(k=="szA")SZ[0]=stoi(v); else if(k=="szB")SZ[1]=stoi(v);
    else if(k=="max")maxs=stoull(v); else if(k=="live")lives=stoi(v); else if(k=="walks"){walks=stoull(v);mode="walk";} else if(k=="depth")depth=stoull(v); else if(k=="seed")seed=stoull(v); else if(k=="ignore")ign.insert(stoi(v)); else if(k=="time")tl=stod(v); else if(k=="prop")PROP=stoi(v); else if(k=="bare")BARE=stoi(v); else if(k=="noevict")NOEVICT=stoi(v); else if(k=="dead")DEAD=stoi(v); else if(k=="showlive")showlive=true; else {fprintf(stderr,"? %s\n",a.c_str());return 2;}}
  s0=init();memcpy(s0.bud,bud,NB);S0BYP=bud[B_BYP];canon(s0); auto T0=chrono::steady_clock::now(); auto el=[&]{return chrono::duration<double>(chrono::steady_clock::now()-T0).count();};
  map<string,int>lv; map<int,int>found; Out out; u64 nlive=0;
  auto tracep=[&](const vector<int>&path,const char*what){printf("VIOLATION %s, %zu steps:\n",what,path.size());S s=s0;Out o;int i=1;for(int a:path){succ(s,o);printf("  %2d %s\n",i++,labs(o[a].first).c_str());S t=o[a].second;s=t;}};
  if(mode=="walk"){ rng^=seed*0x9E3779B97F4A7C15ull;rnd(); u64 steps=0,w=0; Set seen(22); for(;w<walks&&el()<tl;w++){S s=s0;vector<int>path;for(u64 d=0;d<depth;d++){succ(s,out);if(out.empty())break;
        int ch; for(int tries=0;;tries++){ch=rnd()%out.size(); if(!isFault(out[ch].first.k)&&out[ch].first.k!=A_TAKE)break; if(rnd()%6==0||tries>20)break;}
        path.push_back(ch);S t=out[ch].second;s=t;steps++;seen.add(hs(s)); if(s.viol){ if(!ign.count(s.viol)&&!found[s.viol]++)tracep(path,VN[s.viol]); else if(!ign.count(s.viol))found[s.viol]++; break;} }
      if(lives&&!s.viol&&w%lives==0){nlive++;string r=livecheck(s);if(!r.empty()&&!lv[r]++){tracep(path,("(liveness) "+r).c_str());}} }
    printf("walks %llu steps %llu distinct %llu time %.0fs live-checked %llu",(unsigned long long)w,(unsigned long long)steps,(unsigned long long)seen.n,el(),(unsigned long long)nlive);for(auto&x:found)printf(" | %s x%d",VN[x.first],x.second);for(auto&x:lv)printf(" | live:%s x%d",x.first.c_str(),x.second);puts("");return 0;}
  Set seen(22);vector<Rec>recs;vector<pair<uint32_t,string>>cur,nxt; string pk;pack(s0,pk);seen.add(hs(s0));recs.push_back({0,0});cur.push_back({0,pk});
  auto path=[&](uint32_t id){vector<int>p;while(id){p.push_back(recs[id].act);id=recs[id].par;}reverse(p.begin(),p.end());return p;};
  int lev=0;bool stop=false;u64 trans=0; while(!cur.empty()&&!stop){ lev++; for(auto&x:cur){ S s;unpack(x.second.data(),s); string().swap(x.second);
      if(lives&&(hs(s)>>20)%lives==0){nlive++;u64 was=rng;string r=livecheck(s);if(!r.empty()&&!lv[r]++){tracep(path(x.first),("(liveness) "+r).c_str()); if(showlive){vector<string>tr;u64 sv=rng;rng=was;livecheck(s,&tr);rng=sv;int i=0;for(auto&y:tr){printf("     ~ %s\n",y.c_str());if(++i>200)break;}}}}
      succ(s,out);trans+=out.size(); for(size_t i=0;i<out.size();i++){S&t=out[i].second; if(t.viol&&ign.count(t.viol))continue; if(!seen.add(hs(t)))continue; uint32_t id=recs.size();recs.push_back({x.first,(u16)i});
        if(t.viol){ if(!found[t.viol]++){tracep(path(id),VN[t.viol]); if(stopv){stop=true;break;}} continue;}
        pack(t,pk);nxt.push_back({id,pk}); }
      if(stop)break; if(recs.size()>=maxs||el()>tl){stop=true;break;} }
    cur.swap(nxt);nxt.clear(); }
  printf("%s states %zu transitions %llu depth %d time %.0fs live-checked %llu%s",stop?(found.empty()?"BOUND":"STOPPED"):"COMPLETE",recs.size(),(unsigned long long)trans,lev,el(),(unsigned long long)nlive,found.empty()?" no safety violation":"");for(auto&x:lv)printf(" | live:%s x%d",x.first.c_str(),x.second);puts(""); }
